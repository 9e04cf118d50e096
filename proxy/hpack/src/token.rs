//! Well-known field names: those of the static table (RFC 7541 appendix A), and those that HTTP/2
//! and the proxy handle.
#![expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "tables are made when the program is compiled, which fails if an index is wrong"
)]

use crate::hash;

/// The number of a well-known field name, so that code can use `match` instead of comparing bytes.
///
/// Every field of a [`Block`](crate::Block) has a token. All names that are not well known have [`Token::NONE`]. Case
/// matters: a name with upper-case letters is not well known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Token(pub(crate) u8);

/// A token up to this number equals the index of the first entry with its name in the static table.
const STATIC: usize = 61;

/// How many slots of [`BY_HASH`] a lookup examines before the name counts as not well known.
const MAX_LOOKS: usize = 4;

macro_rules! tokens {
    ($($number:literal $constant:ident $name:literal,)*) => {
        impl Token {
            /// A name that is not well known.
            pub const NONE: Token = Token(0);
            $(
                #[doc = concat!("`", $name, "`")]
                pub const $constant: Token = Token($number);
            )*
        }

        const NAMES: &[(u8, &str)] = &[$(($number, $name),)*];
    };
}

tokens! {
    1 AUTHORITY ":authority",
    2 METHOD ":method",
    4 PATH ":path",
    6 SCHEME ":scheme",
    8 STATUS ":status",
    15 ACCEPT_CHARSET "accept-charset",
    16 ACCEPT_ENCODING "accept-encoding",
    17 ACCEPT_LANGUAGE "accept-language",
    18 ACCEPT_RANGES "accept-ranges",
    19 ACCEPT "accept",
    20 ACCESS_CONTROL_ALLOW_ORIGIN "access-control-allow-origin",
    21 AGE "age",
    22 ALLOW "allow",
    23 AUTHORIZATION "authorization",
    24 CACHE_CONTROL "cache-control",
    25 CONTENT_DISPOSITION "content-disposition",
    26 CONTENT_ENCODING "content-encoding",
    27 CONTENT_LANGUAGE "content-language",
    28 CONTENT_LENGTH "content-length",
    29 CONTENT_LOCATION "content-location",
    30 CONTENT_RANGE "content-range",
    31 CONTENT_TYPE "content-type",
    32 COOKIE "cookie",
    33 DATE "date",
    34 ETAG "etag",
    35 EXPECT "expect",
    36 EXPIRES "expires",
    37 FROM "from",
    38 HOST "host",
    39 IF_MATCH "if-match",
    40 IF_MODIFIED_SINCE "if-modified-since",
    41 IF_NONE_MATCH "if-none-match",
    42 IF_RANGE "if-range",
    43 IF_UNMODIFIED_SINCE "if-unmodified-since",
    44 LAST_MODIFIED "last-modified",
    45 LINK "link",
    46 LOCATION "location",
    47 MAX_FORWARDS "max-forwards",
    48 PROXY_AUTHENTICATE "proxy-authenticate",
    49 PROXY_AUTHORIZATION "proxy-authorization",
    50 RANGE "range",
    51 REFERER "referer",
    52 REFRESH "refresh",
    53 RETRY_AFTER "retry-after",
    54 SERVER "server",
    55 SET_COOKIE "set-cookie",
    56 STRICT_TRANSPORT_SECURITY "strict-transport-security",
    57 TRANSFER_ENCODING "transfer-encoding",
    58 USER_AGENT "user-agent",
    59 VARY "vary",
    60 VIA "via",
    61 WWW_AUTHENTICATE "www-authenticate",
    62 PROTOCOL ":protocol",
    63 CONNECTION "connection",
    64 KEEP_ALIVE "keep-alive",
    65 PROXY_CONNECTION "proxy-connection",
    66 TE "te",
    67 TRAILER "trailer",
    68 UPGRADE "upgrade",
    69 HTTP2_SETTINGS "http2-settings",
    70 GRPC_STATUS "grpc-status",
    71 GRPC_MESSAGE "grpc-message",
    72 GRPC_TIMEOUT "grpc-timeout",
    73 GRPC_ENCODING "grpc-encoding",
    74 GRPC_ACCEPT_ENCODING "grpc-accept-encoding",
    75 FORWARDED "forwarded",
    76 X_FORWARDED_FOR "x-forwarded-for",
    77 X_FORWARDED_PROTO "x-forwarded-proto",
    78 X_REQUEST_ID "x-request-id",
    79 TRACEPARENT "traceparent",
    80 TRACESTATE "tracestate",
}

impl Token {
    /// The token of a name.
    pub fn of(name: &[u8]) -> Token {
        Self::of_hashed(name, hash::of_name(name))
    }

    pub(crate) fn of_hashed(name: &[u8], name_hash: u32) -> Token {
        for look in 0..MAX_LOOKS {
            let token = BY_HASH[(name_hash as usize + look) % BY_HASH.len()];
            if token == 0 {
                break;
            }
            if NAME_OF[usize::from(token)].as_bytes() == name {
                return Token(token);
            }
        }
        Token::NONE
    }

    /// The name. Empty for [`Token::NONE`].
    pub fn name(self) -> &'static str {
        NAME_OF[usize::from(self.0)]
    }

    /// The name as it is usually written in HTTP/1, such as `Content-Type`. Empty for [`Token::NONE`].
    pub fn title(self) -> &'static [u8] {
        &TITLE_OF[usize::from(self.0)][..self.name().len()]
    }

    /// The index of the name in the static table.
    pub(crate) fn static_index(self) -> Option<usize> {
        let index = usize::from(self.0);
        (1..=STATIC).contains(&index).then_some(index)
    }
}

/// One entry of the static table.
#[derive(Clone, Copy)]
pub(crate) struct StaticEntry {
    pub(crate) token: Token,
    pub(crate) name: &'static str,
    pub(crate) value: &'static str,
    pub(crate) name_hash: u32,
    pub(crate) field_hash: u32,
}

/// The entry of the static table at `index`, which counts from 1.
pub(crate) fn static_entry(index: usize) -> &'static StaticEntry {
    &ENTRIES[index - 1]
}

/// The number of entries in the static table. The dynamic table follows them.
pub(crate) const STATIC_ENTRIES: usize = STATIC;

/// The index of the entry in the static table that has both this name and this value.
pub(crate) fn static_field(token: Token, value: &[u8]) -> Option<usize> {
    let candidates = match token {
        Token::METHOD => 2..=3,
        Token::PATH => 4..=5,
        Token::SCHEME => 6..=7,
        Token::STATUS => 8..=14,
        Token::ACCEPT_ENCODING => 16..=16,
        _ => return None,
    };
    let mut candidates = candidates;
    candidates.find(|&index| ENTRIES[index - 1].value.as_bytes() == value)
}

/// The index and the value of each entry that has a value. An entry with the same name as the entry before it is always
/// among these.
const VALUES: [(usize, &str); 14] = [
    (2, "GET"),
    (3, "POST"),
    (4, "/"),
    (5, "/index.html"),
    (6, "http"),
    (7, "https"),
    (8, "200"),
    (9, "204"),
    (10, "206"),
    (11, "304"),
    (12, "400"),
    (13, "404"),
    (14, "500"),
    (16, "gzip, deflate"),
];

static ENTRIES: [StaticEntry; STATIC] = entries();

const fn entries() -> [StaticEntry; STATIC] {
    let none = StaticEntry { token: Token::NONE, name: "", value: "", name_hash: 0, field_hash: 0 };
    let mut entries = [none; STATIC];
    let mut index = 1;
    let mut token = 0;
    let mut value = 0;
    while index <= STATIC {
        if NAMES[token + 1].0 as usize <= index {
            token += 1;
        }
        let name = NAMES[token].1;
        let text = if value < VALUES.len() && VALUES[value].0 == index {
            value += 1;
            VALUES[value - 1].1
        } else {
            ""
        };
        let name_hash = hash::of_name(name.as_bytes());
        entries[index - 1] = StaticEntry {
            token: Token(NAMES[token].0),
            name,
            value: text,
            name_hash,
            field_hash: hash::of_field(name_hash, text.as_bytes()),
        };
        index += 1;
    }
    entries
}

static NAME_OF: [&str; 256] = name_of();

const fn name_of() -> [&'static str; 256] {
    let mut names = [""; 256];
    let mut place = 0;
    while place < NAMES.len() {
        names[NAMES[place].0 as usize] = NAMES[place].1;
        place += 1;
    }
    names
}

/// The length of the longest name.
const LONGEST: usize = 27;

static TITLE_OF: [[u8; LONGEST]; 256] = title_of();

const fn title_of() -> [[u8; LONGEST]; 256] {
    let mut titles = [[0; LONGEST]; 256];
    let mut place = 0;
    while place < NAMES.len() {
        let name = NAMES[place].1.as_bytes();
        let mut at = 0;
        while at < name.len() {
            let is_first = at == 0 || name[at - 1] == b'-';
            titles[NAMES[place].0 as usize][at] =
                if is_first { name[at].to_ascii_uppercase() } else { name[at] };
            at += 1;
        }
        place += 1;
    }
    titles
}

/// A hash table of tokens with open addressing, by the hash of the name. 0 marks an empty slot.
static BY_HASH: [u8; 512] = by_hash();

const fn by_hash() -> [u8; 512] {
    let mut table = [0; 512];
    let mut place = 0;
    while place < NAMES.len() {
        let hash = hash::of_name(NAMES[place].1.as_bytes()) as usize;
        let mut look = 0;
        while table[(hash + look) % table.len()] != 0 {
            look += 1;
        }
        assert!(look < MAX_LOOKS, "a well-known name is too far from its place");
        table[(hash + look) % table.len()] = NAMES[place].0;
        place += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_finds_itself() {
        for &(number, name) in NAMES {
            assert_eq!(Token::of(name.as_bytes()), Token(number));
            assert_eq!(Token(number).name(), name);
            assert!(Token(number).title().eq_ignore_ascii_case(name.as_bytes()));
        }
        assert_eq!(Token::WWW_AUTHENTICATE.title(), b"Www-Authenticate");
        assert_eq!(Token::TE.title(), b"Te");
        assert!(Token::NONE.title().is_empty());
        assert_eq!(Token::of(b"Accept"), Token::NONE);
        assert_eq!(Token::of(b""), Token::NONE);
    }

    #[test]
    fn the_static_table_is_that_of_the_rfc() {
        let at = |index| (static_entry(index).name, static_entry(index).value);
        assert_eq!(at(1), (":authority", ""));
        assert_eq!(at(2), (":method", "GET"));
        assert_eq!(at(3), (":method", "POST"));
        assert_eq!(at(5), (":path", "/index.html"));
        assert_eq!(at(7), (":scheme", "https"));
        assert_eq!(at(8), (":status", "200"));
        assert_eq!(at(14), (":status", "500"));
        assert_eq!(at(15), ("accept-charset", ""));
        assert_eq!(at(16), ("accept-encoding", "gzip, deflate"));
        assert_eq!(at(17), ("accept-language", ""));
        assert_eq!(at(61), ("www-authenticate", ""));
        for index in 1..=STATIC {
            let entry = static_entry(index);
            assert_eq!(Token::of(entry.name.as_bytes()), entry.token);
            if !entry.value.is_empty() {
                assert_eq!(static_field(entry.token, entry.value.as_bytes()), Some(index));
            }
        }
    }
}
