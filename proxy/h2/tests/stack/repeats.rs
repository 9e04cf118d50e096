//! Responses of a server that repeats its responses and does not refer to its table, like nginx.

use leno_h2::{Code, Limits};

use crate::script::*;
use crate::support::{request, run};

/// `:status: 200`, and the fields `server: x` and `a: b`, which enter the table.
const SECTION: &[u8] = b"\x88\x76\x01x\x40\x01a\x01b";

#[test]
fn a_response_that_is_repeated_enters_the_table_each_time() {
    run(async {
        let (mut peer, client, ended) = as_server(&Limits::default(), &[]).await;
        let mut id = 1;
        // The last section has the fields `:status: 200`, and by index the newest entry of the table, the one before,
        // and the oldest.
        let sections = [SECTION, SECTION, SECTION, SECTION, SECTION, b"\x88\xbe\xbf\xc7"];
        for section in sections {
            let mut stream = client.open(&request("GET", "/"), true).unwrap();
            peer.expect(HEADERS, id).await;
            peer.send(HEADERS, END_HEADERS | END_STREAM, id, section).await;
            let head = stream.head().await.unwrap();
            let fields: Vec<_> = head.iter().map(|field| (field.name(), field.value())).collect();
            let [status, server, a]: [(&[u8], &[u8]); 3] =
                [(b":status", b"200"), (b"server", b"x"), (b"a", b"b")];
            match section == SECTION {
                true => assert_eq!(fields, [status, server, a]),
                false => assert_eq!(fields, [status, a, server, server]),
            }
            id += 2;
        }
        // The five sections have made ten entries. This section refers to an eleventh, which does not exist.
        let _stream = client.open(&request("GET", "/"), true).unwrap();
        peer.expect(HEADERS, id).await;
        peer.send(HEADERS, END_HEADERS | END_STREAM, id, b"\x88\xc8").await;
        peer.expect_goaway(Code::COMPRESSION_ERROR).await;
        assert!(ended.await.unwrap().is_err());
    });
}
