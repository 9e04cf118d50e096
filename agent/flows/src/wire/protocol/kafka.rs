//! Parses Kafka: the API of a request. All results are `answered`, because failures are reported in the body of
//! the response, whose format differs between APIs and versions.

use super::{MessageMeaning, Parsed, Side};

/// The size of the fields at the beginning: of a request, its length, API, version and number; of a response, its
/// length and number.
const REQUEST: usize = 12;
const RESPONSE: usize = 8;
/// The default limit of a broker for a request.
const MAX_LENGTH: u32 = 100 << 20;
const MAX_VERSION: u16 = 20;
/// The names of APIs by their number. Later ones are counted under `other`.
const APIS: [&str; 43] = [
    "Produce",
    "Fetch",
    "ListOffsets",
    "Metadata",
    "LeaderAndIsr",
    "StopReplica",
    "UpdateMetadata",
    "Shutdown",
    "OffsetCommit",
    "OffsetFetch",
    "FindCoordinator",
    "JoinGroup",
    "Heartbeat",
    "LeaveGroup",
    "SyncGroup",
    "DescribeGroups",
    "ListGroups",
    "SaslHandshake",
    "ApiVersions",
    "CreateTopics",
    "DeleteTopics",
    "DeleteRecords",
    "InitProducerId",
    "OffsetForLeader",
    "AddPartitions",
    "AddOffsets",
    "EndTxn",
    "WriteMarkers",
    "TxnOffsetCommit",
    "DescribeAcls",
    "CreateAcls",
    "DeleteAcls",
    "DescribeConfigs",
    "AlterConfigs",
    "AlterLogDirs",
    "DescribeLogDirs",
    "SaslAuth",
    "CreatePartition",
    "CreateToken",
    "RenewToken",
    "ExpireToken",
    "DescribeToken",
    "DeleteGroups",
];
/// One more than the highest number of an API.
const ALL_APIS: u16 = 100;

#[derive(Debug)]
pub(in crate::wire) struct Kafka;

/// Whether these are the first bytes of a client: one request that contains the client's name.
pub(in crate::wire) fn begins(bytes: &[u8]) -> bool {
    let Parsed::Message(message) = request(bytes) else { return false };
    let Some(length) = bytes.get(REQUEST..REQUEST + 2) else { return false };
    let Ok(length) = <[u8; 2]>::try_from(length) else { return false };
    let is_name = match i16::from_be_bytes(length) {
        -1 => true,
        length @ 0..=255 => {
            let name = bytes.get(REQUEST + 2..REQUEST + 2 + length as usize);
            name.is_some_and(|name| name.iter().all(u8::is_ascii_graphic))
        }
        _ => false,
    };
    is_name && message.length.is_some_and(|length| length as usize >= bytes.len())
}

impl Kafka {
    pub(in crate::wire) fn read(&mut self, side: Side, bytes: &[u8]) -> Parsed {
        match side {
            Side::Client => request(bytes),
            Side::Server => response(bytes),
        }
    }
}

fn be32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// The length and the number at the beginning. The length must be valid for a message with `head` bytes before its
/// body.
fn framed(bytes: &[u8], head: usize) -> Result<(u32, u32), Parsed> {
    let both = be32(bytes, 0).zip(be32(bytes, head - 4));
    let (length, id) = both.ok_or(Parsed::Incomplete)?;
    let is_one = (head as u32 - 4..=MAX_LENGTH).contains(&length) && id <= i32::MAX as u32;
    is_one.then_some((length + 4, id)).ok_or(Parsed::Foreign)
}

fn request(bytes: &[u8]) -> Parsed {
    let (length, id) = match framed(bytes, REQUEST) {
        Ok(found) => found,
        Err(why) => return why,
    };
    let word = |at: usize| bytes.get(at..at + 2).and_then(|two| two.try_into().ok());
    let (Some(api), Some(version)) = (word(4), word(6)) else { return Parsed::Incomplete };
    let (api, version) = (u16::from_be_bytes(api), u16::from_be_bytes(version));
    if api >= ALL_APIS || version > MAX_VERSION {
        return Parsed::Foreign;
    }
    let kind = APIS.get(usize::from(api)).copied().unwrap_or("other");
    Parsed::message(length, MessageMeaning::Request { kind, id })
}

fn response(bytes: &[u8]) -> Parsed {
    match framed(bytes, RESPONSE) {
        Ok((length, id)) => {
            Parsed::message(length, MessageMeaning::Result { result: "answered", id })
        }
        Err(why) => why,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(head: &[u8], body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(head.len() + body.len()).unwrap().to_be_bytes();
        [&length[..], head, body].concat()
    }

    #[test]
    fn requests_have_their_api_and_responses_their_number() {
        let versions = message(&[0, 18, 0, 3, 0, 0, 0, 7], b"\0\x05admin\0\x01");
        assert!(begins(&versions));
        let length = versions.len() as u32;
        let request = MessageMeaning::Request { kind: "ApiVersions", id: 7 };
        assert_eq!(Kafka.read(Side::Client, &versions), Parsed::message(length, request));
        let answer = message(&[0, 0, 0, 7], b"\0\0");
        let result = MessageMeaning::Result { result: "answered", id: 7 };
        assert_eq!(Kafka.read(Side::Server, &answer), Parsed::message(10, result));
        assert_eq!(Kafka.read(Side::Client, &versions[..11]), Parsed::Incomplete);
        let unnamed = message(&[0, 3, 0, 9, 0, 0, 0, 1], &[0xff, 0xff, 0]);
        assert!(begins(&unnamed));
        for other in [
            b"GET / HTTP/1.1\r\n".to_vec(),
            message(&[0, 120, 0, 3, 0, 0, 0, 7], b"\0\x05admin"),
            message(&[0, 18, 0, 3, 0, 0, 0, 7], b"\0\x05ad\nin"),
            [versions.clone(), versions].concat(),
        ] {
            assert!(!begins(&other), "{other:?}");
        }
    }
}
