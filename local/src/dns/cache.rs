//! Caches answers of the host's resolvers, for as long as they are valid.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::RData;

/// Most cached answers. Each is for a name and a record type that some workload queries repeatedly.
const MAX_ANSWERS: usize = 1024;
/// Longest answer that is cached, in bytes: what fits into a datagram on any path.
const MAX_LENGTH: usize = 1232;
/// Longest time that an answer is cached, whatever its TTL.
const MAX_HOLD: Duration = Duration::from_secs(300);

/// Cached answers. The key is the encoded question without its ID.
#[derive(Debug, Default)]
pub(super) struct AnswerCache(Mutex<HashMap<Vec<u8>, CachedAnswer>>);

#[derive(Debug)]
struct CachedAnswer {
    answer: Message,
    since: Instant,
    hold: Duration,
}

impl AnswerCache {
    /// The cached answer to a question, with the question's ID and the remaining TTL.
    pub(super) fn get(&self, question: &[u8], now: Instant) -> Option<Vec<u8>> {
        let (id, rest) = split(question)?;
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let age = now.saturating_duration_since(kept.get(rest)?.since);
        if age >= kept.get(rest)?.hold {
            kept.remove(rest);
            return None;
        }
        let mut answer = kept.get(rest)?.answer.clone();
        drop(kept);
        answer.metadata.id = id;
        let seconds = u32::try_from(age.as_secs()).unwrap_or(u32::MAX);
        let sections = [&mut answer.answers, &mut answer.authorities, &mut answer.additionals];
        for record in sections.into_iter().flatten() {
            record.ttl = record.ttl.saturating_sub(seconds);
        }
        answer.to_vec().ok()
    }

    /// Caches an answer whose TTL is not zero.
    pub(super) fn put(&self, question: &[u8], answer: &[u8], now: Instant) {
        let Some((_, rest)) = split(question).filter(|_| answer.len() <= MAX_LENGTH) else {
            return;
        };
        let Ok(answer) = Message::from_vec(answer) else { return };
        // A cached answer is given to all clients, so one for another question is not stored.
        if !Message::from_vec(question).is_ok_and(|asked| asked.queries == answer.queries) {
            return;
        }
        let hold = holds(&answer).min(MAX_HOLD);
        if hold.is_zero() {
            return;
        }
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() >= MAX_ANSWERS {
            kept.retain(|_, one| now.saturating_duration_since(one.since) < one.hold);
        }
        if kept.len() >= MAX_ANSWERS {
            // Dropping all is simple, and a cache does not help a client that queries so many names.
            kept.clear();
        }
        kept.insert(rest.to_vec(), CachedAnswer { answer, since: now, hold });
    }
}

fn split(question: &[u8]) -> Option<(u16, &[u8])> {
    let (id, rest) = question.split_first_chunk()?;
    Some((u16::from_be_bytes(*id), rest))
}

/// How long an answer is valid; zero if it must not be cached.
fn holds(answer: &Message) -> Duration {
    let seconds = match answer.metadata.response_code {
        _ if answer.metadata.truncation => None,
        ResponseCode::NoError if !answer.answers.is_empty() => {
            answer.answers.iter().map(|record| record.ttl).min()
        }
        // A negative answer is valid as long as its zone's SOA says (RFC 2308 section 5).
        ResponseCode::NoError | ResponseCode::NXDomain => {
            answer.authorities.iter().find_map(|record| match &record.data {
                RData::SOA(soa) => Some(record.ttl.min(soa.minimum)),
                _ => None,
            })
        }
        _ => None,
    };
    Duration::from_secs(seconds.unwrap_or(0).into())
}

#[cfg(test)]
mod tests {
    use hickory_proto::op::{OpCode, Query};
    use hickory_proto::rr::rdata::SOA;
    use hickory_proto::rr::{Name, Record, RecordType};

    use super::*;

    fn question(id: u16, host: &str) -> Vec<u8> {
        let mut message = Message::query();
        message.metadata.id = id;
        message.add_query(Query::query(Name::from_ascii(host).unwrap(), RecordType::A));
        message.to_vec().unwrap()
    }

    fn answer(host: &str, code: ResponseCode, ttl: Option<u32>) -> Vec<u8> {
        let name = Name::from_ascii(host).unwrap();
        let mut message = Message::response(1, OpCode::Query);
        message.metadata.response_code = code;
        message.add_query(Query::query(name.clone(), RecordType::A));
        if let Some(ttl) = ttl {
            let data = RData::A("192.0.2.1".parse().unwrap());
            message.add_answer(Record::from_rdata(name, ttl, data));
        }
        message.to_vec().unwrap()
    }

    #[test]
    fn an_answer_is_kept_for_its_time_and_grows_old_meanwhile() {
        let (cache, now) = (AnswerCache::default(), Instant::now());
        let asked = question(7, "a.example.");
        cache.put(&asked, &answer("a.example.", ResponseCode::NoError, Some(10)), now);
        let got = cache.get(&question(9, "a.example."), now + Duration::from_secs(4)).unwrap();
        let got = Message::from_vec(&got).unwrap();
        assert_eq!((got.metadata.id, got.answers[0].ttl), (9, 6));
        assert_eq!(cache.get(&question(9, "b.example."), now), None);
        assert_eq!(cache.get(&asked, now + Duration::from_secs(10)), None);
    }

    #[test]
    fn failures_are_not_kept_and_no_name_is_as_long_as_its_zone_says() {
        let (cache, now) = (AnswerCache::default(), Instant::now());
        let asked = question(7, "a.example.");
        for code in [ResponseCode::ServFail, ResponseCode::NXDomain] {
            cache.put(&asked, &answer("a.example.", code, None), now);
            assert_eq!(cache.get(&asked, now), None, "{code}");
        }
        let said = answer("a.example.", ResponseCode::NXDomain, None);
        let mut message = Message::from_vec(&said).unwrap();
        let zone = Name::from_ascii("example.").unwrap();
        let soa = SOA::new(zone.clone(), zone.clone(), 1, 1, 1, 1, 5);
        message.insert_authorities(vec![Record::from_rdata(zone, 600, RData::SOA(soa))]);
        cache.put(&asked, &message.to_vec().unwrap(), now);
        assert!(cache.get(&asked, now + Duration::from_secs(4)).is_some());
        assert_eq!(cache.get(&asked, now + Duration::from_secs(5)), None);
    }

    #[test]
    fn the_cache_is_bounded() {
        let (cache, now) = (AnswerCache::default(), Instant::now());
        for number in 0..3 * MAX_ANSWERS {
            let host = format!("n{number}.example.");
            let said = answer(&host, ResponseCode::NoError, Some(60));
            cache.put(&question(7, &host), &said, now);
            assert!(cache.0.lock().unwrap().len() <= MAX_ANSWERS);
            assert!(cache.get(&question(8, &host), now).is_some());
        }
    }
}
