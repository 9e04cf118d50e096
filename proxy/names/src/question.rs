//! A query and its response, as bytes and as values. This module does no I/O.

use std::collections::HashSet;
use std::net::IpAddr;
use std::time::Duration;

use hickory_proto::op::{Edns, Message, MessageType, Query, ResponseCode};
use hickory_proto::rr::rdata::opt::EdnsOption;
use hickory_proto::rr::{Name, RData, Record, RecordType};

use crate::ask::AskError;

/// The code of the EDNS option which says that a proxy sends the query. The code is one of those for local use (RFC
/// 6891 section 9).
pub const PROXY_OPTION: u16 = 65_313;
/// How many addresses of one name are used. If a service has more, they are normally addresses of load balancers, and
/// some of them are enough.
pub const MAX_ADDRESSES: usize = 64;
/// The largest number of aliases that are followed within a response. Real chains have two or three aliases.
const MAX_ALIASES: usize = 16;
/// The longest response over UDP that the query allows, in bytes: it fits every path (DNS flag day
/// 2020).
const UDP_PAYLOAD: u16 = 1232;
/// How long a response without addresses is valid if it has no SOA record.
const DEFAULT_NEGATIVE: Duration = Duration::from_secs(30);

/// What a resolver's response says about one name and one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DnsAnswer {
    /// The addresses, and how long they are valid.
    Addresses(Vec<IpAddr>, Duration),
    /// The name has no addresses of this family.
    None(Duration),
    /// The name does not exist.
    NoName(Duration),
    /// The response did not fit into a datagram. The query must be repeated over TCP.
    Truncated,
}

/// A query for the addresses of `name` in one family.
#[derive(Clone, Debug)]
pub(crate) struct Question {
    name: Name,
    kind: RecordType,
    id: u16,
}

impl Question {
    /// A query. `id` must be hard to guess. The name is absolute: no search domain is appended.
    pub(crate) fn new(host: &str, ipv6: bool, id: u16) -> Result<Self, AskError> {
        let mut name = Name::from_ascii(host).map_err(|_| AskError::NotAName(host.to_owned()))?;
        name.set_fqdn(true);
        let kind = if ipv6 { RecordType::AAAA } else { RecordType::A };
        Ok(Self { name, kind, id })
    }

    /// The encoded query.
    pub(crate) fn bytes(&self) -> Result<Vec<u8>, AskError> {
        let mut message = Message::query();
        message.metadata.id = self.id;
        message.metadata.recursion_desired = true;
        message.add_query(Query::query(self.name.clone(), self.kind));
        let mut edns = Edns::new();
        edns.set_max_payload(UDP_PAYLOAD);
        edns.options_mut().insert(EdnsOption::Unknown(PROXY_OPTION, Vec::new()));
        message.set_edns(edns);
        message.to_vec().map_err(|_| AskError::NotAName(self.name.to_string()))
    }

    /// Decodes `bytes` if they are the response to this query, with the same id, name and type.
    pub(crate) fn is_answered_by(&self, bytes: &[u8]) -> Option<Message> {
        let message = Message::from_vec(bytes).ok()?;
        let asked = matches!(message.queries.as_slice(),
            [query] if *query.name() == self.name && query.query_type() == self.kind);
        let is_answer = message.metadata.message_type == MessageType::Response;
        (is_answer && asked && message.metadata.id == self.id).then_some(message)
    }

    /// The meaning of a response to this query.
    pub(crate) fn read(&self, message: &Message) -> Result<DnsAnswer, AskError> {
        match message.metadata.response_code {
            _ if message.metadata.truncation => return Ok(DnsAnswer::Truncated),
            ResponseCode::NoError => {}
            ResponseCode::NXDomain => return Ok(DnsAnswer::NoName(negative(message))),
            code => return Err(AskError::Refused(code.to_str())),
        }
        let (owners, mut ttl) = self.aliases(&message.answers);
        let mut addresses = Vec::new();
        for record in message.answers.iter().filter(|record| owners.contains(&record.name)) {
            let address = match &record.data {
                RData::A(a) if self.kind == RecordType::A => IpAddr::V4(a.0),
                RData::AAAA(aaaa) if self.kind == RecordType::AAAA => IpAddr::V6(aaaa.0),
                _ => continue,
            };
            let usable = !address.is_unspecified() && !address.is_multicast();
            if usable && addresses.len() < MAX_ADDRESSES && !addresses.contains(&address) {
                addresses.push(address);
            }
            ttl = ttl.min(record.ttl);
        }
        if addresses.is_empty() {
            return Ok(DnsAnswer::None(negative(message)));
        }
        Ok(DnsAnswer::Addresses(addresses, Duration::from_secs(ttl.into())))
    }

    /// Follows the aliases (CNAME) from this name. Returns all names on the way, whose addresses are addresses of this
    /// name, and the shortest time to live of the aliases.
    fn aliases(&self, answers: &[Record]) -> (HashSet<Name>, u32) {
        let (mut owners, mut ttl, mut at) = (HashSet::new(), u32::MAX, self.name.clone());
        owners.insert(at.clone());
        for _ in 0..MAX_ALIASES {
            let alias = answers.iter().find_map(|record| match &record.data {
                RData::CNAME(target) if record.name == at => Some((target.0.clone(), record.ttl)),
                _ => None,
            });
            let Some((target, of_alias)) = alias else { break };
            ttl = ttl.min(of_alias);
            owners.insert(target.clone());
            at = target;
        }
        (owners, ttl)
    }
}

/// How long a response without addresses is valid (RFC 2308 section 5).
fn negative(message: &Message) -> Duration {
    let authority = message.authorities.iter().find_map(|record| match &record.data {
        RData::SOA(soa) => Some(record.ttl.min(soa.minimum)),
        _ => None,
    });
    authority.map_or(DEFAULT_NEGATIVE, |seconds| Duration::from_secs(seconds.into()))
}

#[cfg(test)]
mod tests {
    use hickory_proto::op::OpCode;
    use hickory_proto::rr::rdata::{CNAME, SOA};

    use super::*;

    fn name(text: &str) -> Name {
        Name::from_ascii(text).unwrap()
    }

    fn record(owner: &str, ttl: u32, data: RData) -> Record {
        Record::from_rdata(name(owner), ttl, data)
    }

    fn answered(code: ResponseCode, answers: Vec<Record>, authority: Option<Record>) -> Message {
        let question = Question::new("api.example.com", false, 7).unwrap();
        let asked = Message::from_vec(&question.bytes().unwrap()).unwrap();
        let mut message = Message::response(7, OpCode::Query);
        message.metadata.response_code = code;
        message.add_queries(asked.queries.iter().cloned());
        message.insert_answers(answers);
        message.insert_authorities(authority.into_iter().collect());
        Message::from_vec(&message.to_vec().unwrap()).unwrap()
    }

    fn read(message: &Message) -> Result<DnsAnswer, AskError> {
        Question::new("api.example.com", false, 7).unwrap().read(message)
    }

    #[test]
    fn an_answer_holds_as_long_as_the_shortest_part_of_its_chain() {
        let answers = vec![
            record("api.example.com.", 20, RData::CNAME(CNAME(name("lb.example.net.")))),
            record("lb.example.net.", 300, RData::A("192.0.2.1".parse().unwrap())),
            record("lb.example.net.", 400, RData::A("192.0.2.2".parse().unwrap())),
            // The address of another name, which was not queried. A malicious resolver could send this.
            record("other.example.net.", 1, RData::A("192.0.2.66".parse().unwrap())),
        ];
        let said = read(&answered(ResponseCode::NoError, answers, None)).unwrap();
        let expected = ["192.0.2.1", "192.0.2.2"].map(|text| text.parse().unwrap()).to_vec();
        assert_eq!(said, DnsAnswer::Addresses(expected, Duration::from_secs(20)));
    }

    #[test]
    fn none_and_no_name_are_told_apart_and_hold_as_their_zone_says() {
        let (zone, server) = (name("example.com."), name("ns.example.com."));
        let soa = SOA::new(server.clone(), server, 1, 1, 1, 1, 9);
        let authority = Some(Record::from_rdata(zone, 600, RData::SOA(soa)));
        let none = read(&answered(ResponseCode::NoError, Vec::new(), authority.clone())).unwrap();
        assert_eq!(none, DnsAnswer::None(Duration::from_secs(9)));
        let no_name = read(&answered(ResponseCode::NXDomain, Vec::new(), authority)).unwrap();
        assert_eq!(no_name, DnsAnswer::NoName(Duration::from_secs(9)));
        let bare = read(&answered(ResponseCode::NXDomain, Vec::new(), None)).unwrap();
        assert_eq!(bare, DnsAnswer::NoName(DEFAULT_NEGATIVE));
        assert!(read(&answered(ResponseCode::ServFail, Vec::new(), None)).is_err());
    }

    #[test]
    fn aliases_that_lead_in_a_circle_end() {
        let answers = vec![
            record("api.example.com.", 5, RData::CNAME(CNAME(name("b.example.com.")))),
            record("b.example.com.", 5, RData::CNAME(CNAME(name("api.example.com.")))),
        ];
        let said = read(&answered(ResponseCode::NoError, answers, None)).unwrap();
        assert_eq!(said, DnsAnswer::None(DEFAULT_NEGATIVE));
    }

    #[test]
    fn only_the_answer_to_the_very_question_counts() {
        let question = Question::new("api.example.com", false, 7).unwrap();
        let bytes = answered(ResponseCode::NoError, Vec::new(), None).to_vec().unwrap();
        assert!(question.is_answered_by(&bytes).is_some());
        for (host, ipv6, id) in [
            ("api.example.com", false, 8),
            ("api.example.com", true, 7),
            ("api.example.org", false, 7),
        ] {
            let other = Question::new(host, ipv6, id).unwrap();
            assert!(other.is_answered_by(&bytes).is_none(), "{host} {ipv6} {id}");
        }
        assert!(question.is_answered_by(&question.bytes().unwrap()).is_none(), "an echo");
        assert!(question.is_answered_by(b"nonsense").is_none());
    }

    #[test]
    fn many_addresses_are_cut_at_the_bound() {
        let a = |n: u8| {
            let address = std::net::Ipv4Addr::new(192, 0, 2, n);
            record("api.example.com.", 5, RData::A(address.into()))
        };
        let many = (0..=250).map(a).collect();
        match read(&answered(ResponseCode::NoError, many, None)).unwrap() {
            DnsAnswer::Addresses(addresses, _) => assert_eq!(addresses.len(), MAX_ADDRESSES),
            other => panic!("{other:?}"),
        }
    }
}
