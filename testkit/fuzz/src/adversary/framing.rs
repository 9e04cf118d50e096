//! The end of content (RFC 9112 sections 6 and 7): the disguises of `Transfer-Encoding` and `Content-Length`,
//! chunks, and trailers.

use super::{Case, ParsedRequest};

pub(super) fn cases() -> Vec<Case> {
    let mut cases = transfer_encodings();
    cases.extend(lengths());
    cases.extend(both());
    cases.extend(chunk_sizes());
    cases.extend(chunk_ends());
    cases.extend(extensions());
    cases.extend(trailers());
    cases.extend(methods_without_content());
    cases
}

fn post(fields: &str, body: &str) -> String {
    format!("POST / HTTP/1.1\r\nHost: cart\r\n{fields}\r\n{body}")
}

fn chunked(body: &str) -> String {
    post("Transfer-Encoding: chunked\r\n", body)
}

/// Lines that some servers may take for `Transfer-Encoding: chunked`, and others not.
const DISGUISES: [&str; 44] = [
    "Transfer-Encoding : chunked",
    "Transfer-Encoding\t: chunked",
    " Transfer-Encoding: chunked",
    "\tTransfer-Encoding: chunked",
    "Transfer-Encoding: xchunked",
    "Transfer-Encoding: chunkedx",
    "Transfer-Encoding: chunked, identity",
    "Transfer-Encoding: identity, chunked",
    "Transfer-Encoding: chunked, chunked",
    "Transfer-Encoding: chunked, gzip",
    "Transfer-Encoding: gzip",
    "Transfer-Encoding: identity",
    "Transfer-Encoding: \"chunked\"",
    "Transfer-Encoding: 'chunked'",
    "Transfer-Encoding: chunked;q=1",
    "Transfer-Encoding: chunked;",
    "Transfer-Encoding: chun ked",
    "Transfer-Encoding: \u{b}chunked",
    "Transfer-Encoding: \u{c}chunked",
    "Transfer-Encoding: chunked\u{b}",
    "Transfer-Encoding: \0chunked",
    "Transfer-Encoding: chunked\0",
    "Transfer-Encoding:\r\n chunked",
    "Transfer-Encoding: chu\r\n nked",
    "Transfer-Encoding\r\n: chunked",
    "Transfer-Encoding",
    "Transfer-Encoding:",
    "Transfer-Encoding: ,",
    "Transfer-Encoding: deflate, chunked, identity",
    "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
    "Transfer-Encoding: identity\r\nTransfer-Encoding: chunked",
    "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
    "Transfer-Encoding: chunked\r\nTransfer-encoding: x",
    "X: a\nTransfer-Encoding: chunked",
    "X: a\rTransfer-Encoding: chunked",
    "X: a\r\n\rTransfer-Encoding: chunked",
    "Transfer Encoding: chunked",
    "Transfer-Encoding: \u{ff}chunked",
    "Transfer-Encoding: c\u{202e}hunked",
    "Transfer-\u{412}ncoding: chunked",
    "Transfer-Encoding;: chunked",
    "(Transfer-Encoding): chunked",
    "Transfer-Encoding: chunked HTTP/1.1",
    "Transfer-Encoding: CHUN\u{212a}ED",
];

/// Messages with such lines, which must be refused whatever other framing they have.
fn transfer_encodings() -> Vec<Case> {
    let hidden = "0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: cart\r\n\r\n";
    let whole = hidden.len().to_string();
    let mut cases = Vec::new();
    for disguise in DISGUISES {
        for length in ["", "0", "4", "5", &whole] {
            let name = format!("{disguise:?} with Content-Length {length:?}");
            let length = match length {
                "" => String::new(),
                length => format!("Content-Length: {length}\r\n"),
            };
            for fields in [format!("{disguise}\r\n{length}"), format!("{length}{disguise}\r\n")] {
                cases.push(Case::refused(name.clone(), post(&fields, hidden)));
            }
        }
    }
    // These are the names of other fields, so the value has no meaning.
    for name in ["Transfer_Encoding", "XTransfer-Encoding", "Transfer-Encodin", "Transfer.Encoding"]
    {
        let fields = format!("{name}: chunked\r\nContent-Length: {whole}\r\n");
        let asked = vec![ParsedRequest::new("POST", "/", hidden.as_bytes())];
        cases.push(Case::either(format!("{name} is another field"), post(&fields, hidden), asked));
    }
    for value in ["chunked", "Chunked", "CHUNKED", " chunked ", "\tchunked\t"] {
        let sent = post(&format!("Transfer-Encoding:{value}\r\n"), "3\r\nabc\r\n0\r\n\r\n");
        let asked = vec![ParsedRequest::new("POST", "/", b"abc")];
        cases.push(Case::forwarded(format!("Transfer-Encoding:{value:?}"), sent, asked));
    }
    let http10 =
        "POST / HTTP/1.0\r\nHost: cart\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
    let asked = vec![ParsedRequest::new("POST", "/", b"abc")];
    cases.push(Case::either("Transfer-Encoding in HTTP/1.0".into(), http10, asked));
    cases
}

/// Invalid lengths. A list of equal values may count as one length.
const NO_LENGTHS: &[&str] = &[
    "+5",
    "-5",
    "-0",
    "+0",
    "0x5",
    "5 5",
    "5,5",
    "5, 5",
    "5,6",
    "5,",
    ",5",
    "5;",
    "5.0",
    "5e0",
    "1e1",
    "five",
    "\"5\"",
    "_5",
    "5_0",
    "5\0",
    "\u{b}5",
    "5\u{c}",
    "\u{665}",
    "\u{ff15}",
    "99999999999999999999",
    "18446744073709551616",
    "18446744073709551621",
    "-18446744073709551611",
    "340282366920938463463374607431768211461",
    "",
    " ",
    "5\r\n 0",
    "5\n0",
    "0 5",
    "NaN",
    "inf",
    "%35",
    "(5)",
    "5x",
    "x5",
    "$5",
    "0b101",
    "0o5",
    "5h",
];

fn lengths() -> Vec<Case> {
    let mut cases = Vec::new();
    for value in NO_LENGTHS {
        let value = *value;
        for method in ["POST", "GET", "PUT"] {
            let sent = format!(
                "{method} / HTTP/1.1\r\nHost: cart\r\nContent-Length: {value}\r\n\r\n12345GET /smuggled HTTP/1.1\r\n\
                 Host: cart\r\n\r\n"
            );
            let equal = matches!(value, "5,5" | "5, 5");
            let name = format!("Content-Length {value:?} of {method}");
            if equal {
                // Equal values may count as one (RFC 9110 section 8.6). The bytes after the content are then
                // another request.
                let sent = sent.replace("/smuggled", "/next");
                let asked = vec![
                    ParsedRequest::new(method, "/", b"12345"),
                    ParsedRequest::new("GET", "/next", b""),
                ];
                cases.push(Case::either(name, sent, asked));
            } else {
                cases.push(Case::refused(name, sent));
            }
        }
    }
    for value in ["5", "05", "000000000000000000005", " 5", "5 ", "\t5\t"] {
        let sent = post(&format!("Content-Length:{value}\r\n"), "12345");
        let asked = vec![ParsedRequest::new("POST", "/", b"12345")];
        cases.push(Case::either(format!("Content-Length:{value:?}"), sent, asked));
    }
    for (first, second) in [
        ("5", "6"),
        ("6", "5"),
        ("5", "0"),
        ("0", "5"),
        ("5", "x"),
        ("x", "5"),
        ("5", ""),
        ("5", "+5"),
    ] {
        let fields = format!("Content-Length: {first}\r\nX-A: b\r\ncontent-length: {second}\r\n");
        let sent = post(&fields, "12345GET /smuggled HTTP/1.1\r\nHost: cart\r\n\r\n");
        cases.push(Case::refused(format!("Content-Length {first:?} and {second:?}"), sent));
    }
    let sent = post("Content-Length: 5\r\nContent-Length: 5\r\n", "12345");
    cases.push(Case::either(
        "two equal lengths".into(),
        sent,
        vec![ParsedRequest::new("POST", "/", b"12345")],
    ));
    cases
}

/// Both framings at once. Either the chunks count, or the request is refused. The proxy must never parse the
/// following bytes as a request of this connection (RFC 9112 section 6.1).
fn both() -> Vec<Case> {
    let mut cases = Vec::new();
    let body = "0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: cart\r\n\r\n";
    for length in ["0", "3", "4", "5", "6", "50", "1000"] {
        for (name, fields) in [
            ("behind", format!("Transfer-Encoding: chunked\r\nContent-Length: {length}\r\n")),
            ("before", format!("Content-Length: {length}\r\nTransfer-Encoding: chunked\r\n")),
            (
                "around",
                format!(
                    "Content-Length: {length}\r\nTransfer-Encoding: chunked\r\nContent-Length: {length}\r\n"
                ),
            ),
        ] {
            let asked = vec![ParsedRequest::new("POST", "/", b"")];
            let name = format!("chunks with a Content-Length of {length} {name}");
            cases.push(Case::either(name, post(&fields, body), asked));
        }
    }
    cases
}

fn chunk_sizes() -> Vec<Case> {
    let mut cases = Vec::new();
    for size in ["3", "03", "0003", "0000000000003"] {
        let sent = chunked(&format!("{size}\r\nabc\r\n0\r\n\r\n"));
        let asked = vec![ParsedRequest::new("POST", "/", b"abc")];
        cases.push(Case::either(format!("chunk size {size}"), sent, asked));
    }
    for (size, data) in [
        ("a", "0123456789"),
        ("A", "0123456789"),
        ("0A", "0123456789"),
        ("1f", "0123456789012345678901234567890"),
    ] {
        let sent = chunked(&format!("{size}\r\n{data}\r\n0\r\n\r\n"));
        let asked = vec![ParsedRequest::new("POST", "/", data.as_bytes())];
        cases.push(Case::forwarded(format!("chunk size {size}"), sent, asked));
    }
    for size in [
        "",
        " ",
        "-3",
        "+3",
        "0x3",
        "x",
        "3x",
        "g",
        " 3",
        "\t3",
        "3.",
        "3,",
        "3 3",
        "3\0",
        "\u{b}3",
        "_3",
        "3_",
        "10000000000000000",
        "10000000000000003",
        "ffffffffffffffff",
        "fffffffffffffffd",
        "7fffffffffffffff1",
        "ffffffffffffffffffff3",
        "100000000000000000000000000000003",
        "\u{663}",
        "3\u{a0}",
        "0X3",
        "3h",
        "\"3\"",
        "-0",
        "+0",
        "0x0",
        "%33",
        "3\r",
        "\r3",
        "\n3",
    ] {
        let sent = chunked(&format!(
            "{size}\r\nabc\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"
        ));
        cases.push(Case::refused(format!("chunk size {size:?}"), sent));
    }
    cases
}

/// Variants of the ends of chunk lines and of chunk data.
fn chunk_ends() -> Vec<Case> {
    let mut cases = Vec::new();
    for body in [
        "3\nabc\r\n0\r\n\r\n",
        "3\r\nabc\n0\r\n\r\n",
        "3\r\nabc0\r\n\r\n",
        "3\r\nabcd\r\n0\r\n\r\n",
        "3\r\nab\r\n0\r\n\r\n",
        "3\rabc\r\n0\r\n\r\n",
        "3\r\nabc\r0\r\n\r\n",
        "3\r\nabc\r\n0\n\r\n",
        "3\r\r\nabc\r\n0\r\n\r\n",
        "3\r\nabc\r\n\r\n0\r\n\r\n",
        "3\r\nabc  0\r\n\r\n",
        "3\r\nabcxx0\r\n\r\n",
        "3 \r\n\r\nabc\r\n0\r\n\r\n",
        "3\n\nabc\r\n0\r\n\r\n",
        "3\r\nabc\r\n0\r\r\n\r\n",
        "\r\n3\r\nabc\r\n0\r\n\r\n",
        "abc",
        "3\r\nabc\r\n0\r\nx\r\n\r\n",
        "3\r\nabc\r\n0 0\r\n\r\n",
    ] {
        let sent = chunked(&format!("{body}GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"));
        cases.push(Case::refused(format!("chunks {body:?}"), sent));
    }
    cases
}

/// Chunk extensions, which have no meaning and must not hide anything (RFC 9112 section 7.1.1).
fn extensions() -> Vec<Case> {
    let mut cases = Vec::new();
    for extension in [
        ";",
        ";a",
        ";a=b",
        ";a=\"b\"",
        ";a=b;c=d",
        " ;a",
        "; a = b",
        ";a=\"b;c\"",
        ";a=\"b\\\"c\"",
        ";;",
        ";=",
        ";a=",
        "\t;a",
    ] {
        let sent = chunked(&format!("3{extension}\r\nabc\r\n0{extension}\r\n\r\n"));
        let asked = vec![ParsedRequest::new("POST", "/", b"abc")];
        cases.push(Case::either(format!("chunk extension {extension:?}"), sent, asked));
    }
    for extension in [
        ";a\n",
        ";a=\"\n\"",
        ";a=\"\r\n\"",
        ";\n",
        ";a\r",
        ";a\rb",
        ";a=\"\r\"",
        ";\0",
        ";a=\"\0\"",
        ";a\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n",
        ";\nabc\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nx: ",
        ";a=\"\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n\"",
    ] {
        let sent = chunked(&format!("3{extension}\r\nabc\r\n0\r\n\r\n"));
        cases.push(Case::refused(format!("chunk extension {extension:?}"), sent));
    }
    for length in [10, 1000, 10_000, 100_000] {
        let extension = "a".repeat(length);
        let sent = chunked(&format!("3;{extension}\r\nabc\r\n0\r\n\r\n"));
        let asked = vec![ParsedRequest::new("POST", "/", b"abc")];
        cases.push(Case::either(format!("a chunk extension of {length} bytes"), sent, asked));
    }
    cases
}

fn trailers() -> Vec<Case> {
    let mut cases = Vec::new();
    // Permitted trailers may be dropped, but must not have the effect of header fields.
    for trailer in [
        "x-a: b",
        "Content-Length: 5",
        "Transfer-Encoding: chunked",
        "Host: evil",
        "Connection: x-a",
        "Authorization: x",
        "Content-Type: x",
        "Cookie: a=b",
        "Trailer: x",
        "TE: trailers",
        "Keep-Alive: 1",
        "Upgrade: h2c",
        "Proxy-Connection: close",
        "leno-error: application-unreachable",
        "Expect: 100-continue",
        "Content-Encoding: gzip",
        "Range: bytes=0-",
        "x-a:",
    ] {
        let sent = chunked(&format!("3\r\nabc\r\n0\r\n{trailer}\r\n\r\n"));
        let asked = vec![ParsedRequest::new("POST", "/", b"abc")];
        cases.push(Case::either(format!("trailer {trailer:?}"), sent, asked));
    }
    for trailer in [
        "x-a : b",
        " x-a: b",
        "x-a: b\r\n c",
        "x-a\r\n",
        ": b",
        "x-a: b\0",
        "x-a: b\rc",
        "x a: b",
        "GET /smuggled HTTP/1.1",
        "x-a: b\nx-c: d",
        "x-a\n: b",
        "\0: b",
        "x-a",
    ] {
        let sent = chunked(&format!("3\r\nabc\r\n0\r\n{trailer}\r\n\r\n"));
        cases.push(Case::refused(format!("trailer {trailer:?}"), sent));
    }
    for count in [100, 300, 10_000] {
        let sent = chunked(&format!("3\r\nabc\r\n0\r\n{}\r\n", "x-a: b\r\n".repeat(count)));
        let asked = vec![ParsedRequest::new("POST", "/", b"abc")];
        cases.push(Case::either(format!("{count} trailers"), sent, asked));
    }
    cases
}

/// Content of methods that usually have none, which is framed like any other content.
fn methods_without_content() -> Vec<Case> {
    let mut cases = Vec::new();
    for method in ["GET", "HEAD", "DELETE", "OPTIONS", "TRACE", "PROPFIND", "X"] {
        let hidden = "GET /smuggled HTTP/1.1\r\nHost: cart\r\n\r\n";
        let length = hidden.len();
        let asked = ParsedRequest::new(method, "/", hidden.as_bytes());
        let sent = format!(
            "{method} / HTTP/1.1\r\nHost: cart\r\nContent-Length: {length}\r\n\r\n{hidden}"
        );
        cases.push(Case::either(format!("{method} with content"), sent, vec![asked.clone()]));
        let sent = format!(
            "{method} / HTTP/1.1\r\nHost: cart\r\nTransfer-Encoding: chunked\r\n\r\n{length:x}\r\n{hidden}\r\n0\r\n\r\n"
        );
        cases.push(Case::either(format!("{method} with chunks"), sent, vec![asked]));
    }
    cases
}
