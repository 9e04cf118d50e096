//! The examples of RFC 7541 appendix C. All of them are decoded. Those in which our encoder makes the same choices are
//! also encoded.
#![expect(clippy::unwrap_used, reason = "tests")]

use leno_hpack::{Block, Decoder, Encoder, Limits, Outcome};

const LIMITS: Limits = Limits { list_bytes: 65_536, fields: 100 };

type Fields = &'static [(&'static str, &'static str)];

/// Consecutive sections: the octets, the fields, and the table's size afterwards.
type Example = &'static [(&'static str, Fields, usize)];

const GET: [Fields; 3] = [
    &[(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "www.example.com")],
    &[
        (":method", "GET"),
        (":scheme", "http"),
        (":path", "/"),
        (":authority", "www.example.com"),
        ("cache-control", "no-cache"),
    ],
    &[
        (":method", "GET"),
        (":scheme", "https"),
        (":path", "/index.html"),
        (":authority", "www.example.com"),
        ("custom-key", "custom-value"),
    ],
];

const ANSWERS: [Fields; 3] = [
    &[
        (":status", "302"),
        ("cache-control", "private"),
        ("date", "Mon, 21 Oct 2013 20:13:21 GMT"),
        ("location", "https://www.example.com"),
    ],
    &[
        (":status", "307"),
        ("cache-control", "private"),
        ("date", "Mon, 21 Oct 2013 20:13:21 GMT"),
        ("location", "https://www.example.com"),
    ],
    &[
        (":status", "200"),
        ("cache-control", "private"),
        ("date", "Mon, 21 Oct 2013 20:13:22 GMT"),
        ("location", "https://www.example.com"),
        ("content-encoding", "gzip"),
        ("set-cookie", "foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1"),
    ],
];

const C3: Example = &[
    ("8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d", GET[0], 57),
    ("8286 84be 5808 6e6f 2d63 6163 6865", GET[1], 110),
    ("8287 85bf 400a 6375 7374 6f6d 2d6b 6579 0c63 7573 746f 6d2d 7661 6c75 65", GET[2], 164),
];

const C4: Example = &[
    ("8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff", GET[0], 57),
    ("8286 84be 5886 a8eb 1064 9cbf", GET[1], 110),
    ("8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf", GET[2], 164),
];

const C5: Example = &[
    (
        "4803 3330 3258 0770 7269 7661 7465 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a
         3133 3a32 3120 474d 546e 1768 7474 7073 3a2f 2f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
        ANSWERS[0],
        222,
    ),
    ("4803 3330 37c1 c0bf", ANSWERS[1], 222),
    (
        "88c1 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 3220 474d 54c0 5a04
         677a 6970 7738 666f 6f3d 4153 444a 4b48 514b 425a 584f 5157 454f 5049 5541 5851 5745 4f49
         553b 206d 6178 2d61 6765 3d33 3630 303b 2076 6572 7369 6f6e 3d31",
        ANSWERS[2],
        215,
    ),
];

const C6: Example = &[
    (
        "4882 6402 5885 aec3 771a 4b61 96d0 7abe 9410 54d4 44a8 2005 9504 0b81 66e0 82a6 2d1b ff6e
         919d 29ad 1718 63c7 8f0b 97c8 e9ae 82ae 43d3",
        ANSWERS[0],
        222,
    ),
    ("4883 640e ffc1 c0bf", ANSWERS[1], 222),
    (
        "88c1 6196 d07a be94 1054 d444 a820 0595 040b 8166 e084 a62d 1bff c05a 839b d9ab 77ad 94e7
         821d d7f2 e6c7 b335 dfdf cd5b 3960 d5af 2708 7f36 72c1 ab27 0fb5 291f 9587 3160 65c0 03ed
         4ee5 b106 3d50 07",
        ANSWERS[2],
        215,
    ),
];

fn octets(hex: &str) -> Vec<u8> {
    let digits: Vec<u32> = hex.chars().filter_map(|digit| digit.to_digit(16)).collect();
    digits.chunks(2).map(|pair| (pair[0] << 4 | pair[1]) as u8).collect()
}

fn read(example: Example, table: usize) {
    let mut decoder = Decoder::new(table);
    let mut block = Block::new();
    for (hex, fields, size) in example {
        assert_eq!(decoder.decode(&octets(hex), &mut block, LIMITS), Ok(Outcome::Complete));
        let made: Vec<_> = block
            .iter()
            .map(|field| {
                (str::from_utf8(field.name()).unwrap(), str::from_utf8(field.value()).unwrap())
            })
            .collect();
        assert_eq!(made, *fields);
        assert_eq!(decoder.table_size(), *size);
    }
}

#[test]
fn c2_field_representations() {
    let one: [(&str, Fields, usize, bool); 4] = [
        (
            "400a 6375 7374 6f6d 2d6b 6579 0d63 7573 746f 6d2d 6865 6164 6572",
            &[("custom-key", "custom-header")],
            55,
            false,
        ),
        ("040c 2f73 616d 706c 652f 7061 7468", &[(":path", "/sample/path")], 0, false),
        ("1008 7061 7373 776f 7264 0673 6563 7265 74", &[("password", "secret")], 0, true),
        ("82", &[(":method", "GET")], 0, false),
    ];
    for (hex, fields, size, sensitive) in one {
        let mut decoder = Decoder::new(4096);
        let mut block = Block::new();
        assert_eq!(decoder.decode(&octets(hex), &mut block, LIMITS), Ok(Outcome::Complete));
        assert_eq!(block.len(), 1);
        let field = block.field(0).unwrap();
        assert_eq!((field.name(), field.value()), (fields[0].0.as_bytes(), fields[0].1.as_bytes()));
        assert_eq!(field.is_sensitive(), sensitive);
        assert_eq!(decoder.table_size(), size);
    }
}

#[test]
fn c3_requests() {
    read(C3, 4096);
}

#[test]
fn c4_requests_with_huffman() {
    read(C4, 4096);
}

#[test]
fn c5_answers_with_eviction() {
    read(C5, 256);
}

#[test]
fn c6_answers_with_huffman_and_eviction() {
    read(C6, 256);
}

#[test]
fn requests_are_written_as_in_c4() {
    let mut encoder = Encoder::new(4096);
    for (hex, fields, size) in C4 {
        let block: Block = fields.iter().copied().collect();
        let mut section = Vec::new();
        encoder.encode(&block, &mut section);
        assert_eq!(section, octets(hex));
        assert_eq!(encoder.table_size(), *size);
    }
}
