//! How messages of gRPC become bytes. A call holds its buffers as long as it lasts, and a call for discovery lasts as long as
//! its proxy: so they begin small, and grow with what is large.

use std::marker::PhantomData;

use prost::Message;
use tonic::codec::{BufferSettings, Codec};
use tonic_prost::{ProstDecoder, ProstEncoder};

/// What each buffer of a call holds at first, in bytes: most messages. tonic has 8 KiB, in each of three buffers.
const FIRST: usize = 512;
/// From this size on, messages are sent before further ones are added, as tonic has it.
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
