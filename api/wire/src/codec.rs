//! The gRPC codec. A call holds its buffers as long as it lasts, and a discovery call lasts as long as its proxy. So
//! the buffers start small, and grow only for large messages.

use std::marker::PhantomData;

use prost::Message;
use tonic::codec::{BufferSettings, Codec};
use tonic_prost::{ProstDecoder, ProstEncoder};

/// The initial size of each buffer of a call, in bytes: enough for most messages. tonic uses 8 KiB for each of three
/// buffers.
const FIRST: usize = 512;
/// Once a buffer has this size, its messages are sent before further ones are added to it, as in tonic.
const FULL: usize = 32 * 1024;

/// The codec of the generated code.
#[derive(Clone, Debug)]
pub(crate) struct SmallBuffers<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for SmallBuffers<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U> Codec for SmallBuffers<T, U>
where
    T: Message + Send + 'static,
    U: Message + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = ProstDecoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstEncoder::new(BufferSettings::new(FIRST, FULL))
    }

    fn decoder(&mut self) -> Self::Decoder {
        ProstDecoder::new(BufferSettings::new(FIRST, FULL))
    }
}
