//! A discovery stream of raw bytes, for messages that the generated code cannot encode.

use bytes::{Buf, BufMut};
use http::uri::PathAndQuery;
use tokio_stream::StreamExt as _;
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::transport::Channel;
use tonic::{Request, Status, Streaming};

const METHOD: &str = "/leno.v1.Discovery/DeltaAggregatedResources";
/// The types of fields on the wire (Protocol Buffers, "Encoding").
const VARINT: u32 = 0;
const LENGTH_DELIMITED: u32 = 2;

/// Opens a stream, sends these messages, and leaves the stream open. Returns the responses.
pub(super) async fn discovery(
    channel: Channel,
    requests: Vec<Vec<u8>>,
) -> Result<Streaming<Vec<u8>>, Status> {
    let mut client = Grpc::new(channel);
    client.ready().await.expect("a connection");
    let requests = tokio_stream::iter(requests).chain(tokio_stream::pending());
    let path = PathAndQuery::from_static(METHOD);
    Ok(client.streaming(Request::new(requests), path, Bytes).await?.into_inner())
}

/// Encodes a field that contains a text.
pub(super) fn text(number: u32, text: &str) -> Vec<u8> {
    bytes(number, text.as_bytes())
}

/// Encodes a field that contains bytes or a message.
pub(super) fn bytes(number: u32, content: &[u8]) -> Vec<u8> {
    let mut field = varint((number << 3) | LENGTH_DELIMITED);
    field.extend(varint(content.len().try_into().unwrap()));
    field.extend(content);
    field
}

/// Encodes a field that contains a number.
pub(super) fn number(number: u32, value: u32) -> Vec<u8> {
    [varint((number << 3) | VARINT), varint(value)].concat()
}

fn varint(mut value: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value > 0x7f {
        bytes.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

/// Passes on messages that are already encoded.
#[derive(Clone, Copy)]
struct Bytes;

impl Codec for Bytes {
    type Encode = Vec<u8>;
    type Decode = Vec<u8>;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Bytes {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put_slice(&item);
        Ok(())
    }
}

impl Decoder for Bytes {
    type Item = Vec<u8>;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Vec<u8>>, Status> {
        let mut message = vec![0; buffer.remaining()];
        buffer.copy_to_slice(&mut message);
        Ok(Some(message))
    }
}
