//! The `h2` crate as the client of an in-memory connection. The server's frames are built by hand with our codec. So
//! the crate's encoder is tested with our decoder, and our encoder with the crate's decoder.

use anyhow::{Context, bail, ensure};
use http::{HeaderName, HeaderValue, Request};
use leno_hpack::{Block, Decoder, Encoder, Limits, Outcome};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

const LIMITS: Limits = Limits { list_bytes: 1 << 20, fields: 1000 };

const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const CONTINUATION: u8 = 9;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;
const END_STREAM: u8 = 1;
const HEADER_TABLE_SIZE: u16 = 1;

const REQUESTS: usize = 300;

/// The fields of request or response `number`: some are constant, some are new, and some return later.
fn fields(number: usize, side: &str) -> Vec<(String, String)> {
    let mut fields = vec![
        ("content-type".into(), "application/json".into()),
        ("x-request-id".into(), format!("{:016x}", number * 0x9e37_79b9)),
        ("cookie".into(), format!("session={}{side}; theme=dark", number % 3)),
        ("x-empty".into(), String::new()),
    ];
    for extra in 0..number % 7 {
        fields.push((format!("x-{side}-{extra}"), format!("value {}", number % 11)));
    }
    if number.is_multiple_of(40) {
        fields.push(("x-large".into(), "~A{".repeat(6000)));
    }
    fields
}

struct Server {
    stream: DuplexStream,
    encoder: Encoder,
    decoder: Decoder,
    /// The table size in our SETTINGS. Our decoder uses it once the client has acknowledged them.
    table: usize,
}

impl Server {
    async fn frame(&mut self) -> anyhow::Result<(u8, u8, u32, Vec<u8>)> {
        let mut head = [0; 9];
        self.stream.read_exact(&mut head).await?;
        let [a, b, c, kind, flags, stream @ ..] = head;
        let stream = u32::from_be_bytes(stream);
        let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
        self.stream.read_exact(&mut payload).await?;
        Ok((kind, flags, stream, payload))
    }

    async fn send(
        &mut self,
        kind: u8,
        flags: u8,
        stream: u32,
        payload: &[u8],
    ) -> anyhow::Result<()> {
        let mut frame = (payload.len() as u32).to_be_bytes()[1..].to_vec();
        frame.extend([kind, flags]);
        frame.extend(stream.to_be_bytes());
        frame.extend(payload);
        Ok(self.stream.write_all(&frame).await?)
    }

    async fn run(&mut self) -> anyhow::Result<()> {
        let mut preface = [0; 24];
        self.stream.read_exact(&mut preface).await?;
        let mut settings = HEADER_TABLE_SIZE.to_be_bytes().to_vec();
        settings.extend((self.table as u32).to_be_bytes());
        self.send(SETTINGS, 0, 0, &settings).await?;
        let (mut served, mut block) = (0, Block::new());
        while served < REQUESTS {
            let (kind, mut flags, stream, mut payload) = self.frame().await?;
            match kind {
                SETTINGS if flags & ACK != 0 => self.decoder.set_max_table(self.table),
                SETTINGS => self.settings(&payload).await?,
                HEADERS => {
                    while flags & END_HEADERS == 0 {
                        let (kind, more, _, part) = self.frame().await?;
                        ensure!(kind == CONTINUATION, "frame {kind} within a field section");
                        flags |= more;
                        payload.extend(part);
                    }
                    let outcome = self.decoder.decode(&payload, &mut block, LIMITS)?;
                    ensure!(outcome == Outcome::Complete);
                    check_request(&block, served)?;
                    self.answer(stream, served).await?;
                    served += 1;
                }
                _ => {}
            }
        }
        Ok(())
    }

    async fn settings(&mut self, payload: &[u8]) -> anyhow::Result<()> {
        for setting in payload.as_chunks::<6>().0 {
            let [a, b, value @ ..] = *setting;
            if u16::from_be_bytes([a, b]) == HEADER_TABLE_SIZE {
                self.encoder.set_max_table(u32::from_be_bytes(value) as usize);
            }
        }
        self.send(SETTINGS, ACK, 0, &[]).await
    }

    async fn answer(&mut self, stream: u32, number: usize) -> anyhow::Result<()> {
        let mut block: Block = [(":status", "200")].into_iter().collect();
        for (name, value) in fields(number, "answer") {
            block.push(name.as_bytes(), value.as_bytes());
        }
        let mut section = Vec::new();
        self.encoder.encode(&block, &mut section);
        let parts: Vec<_> = section.chunks(16_384).collect();
        for (index, part) in parts.iter().enumerate() {
            let first = index == 0;
            let end = if index + 1 == parts.len() { END_HEADERS } else { 0 };
            let flags = end | if first { END_STREAM } else { 0 };
            self.send(if first { HEADERS } else { CONTINUATION }, flags, stream, part).await?;
        }
        Ok(())
    }
}

fn check_request(block: &Block, number: usize) -> anyhow::Result<()> {
    let path = format!("/items/{}", number % 50);
    ensure!(block.get(b":path") == Some(path.as_bytes()));
    ensure!(block.get(b":authority") == Some(&b"example.com"[..]));
    ensure!(block.leading_pseudo() == 4);
    let secret = block.position(b"x-secret").context("the sensitive field is missing")?;
    ensure!(block.field(secret).is_some_and(|field| field.is_sensitive()));
    let mut got: Vec<_> = block
        .iter()
        .filter(|field| !field.is_pseudo() && field.name() != b"x-secret")
        .map(|field| (field.name().to_vec(), field.value().to_vec()))
        .collect();
    let sent = fields(number, "request");
    let mut sent: Vec<_> =
        sent.into_iter().map(|(name, value)| (name.into(), value.into())).collect();
    got.sort();
    sent.sort();
    ensure!(got == sent, "request {number}: {got:?}");
    Ok(())
}

async fn client(mut sender: h2::client::SendRequest<bytes::Bytes>) -> anyhow::Result<()> {
    for number in 0..REQUESTS {
        let uri = format!("http://example.com/items/{}", number % 50);
        let mut request = Request::get(uri).body(())?;
        for (name, value) in fields(number, "request") {
            let name = HeaderName::try_from(name)?;
            request.headers_mut().append(name, HeaderValue::try_from(value)?);
        }
        let mut secret = HeaderValue::from_static("secret");
        secret.set_sensitive(true);
        request.headers_mut().append("x-secret", secret);
        sender = sender.ready().await?;
        let (response, _) = sender.send_request(request, true)?;
        let response = response.await.with_context(|| format!("response {number}"))?;
        let mut got: Vec<_> = response
            .headers()
            .iter()
            .map(|(name, value)| (name.as_str().as_bytes().to_vec(), value.as_bytes().to_vec()))
            .collect();
        let sent = fields(number, "answer");
        let mut sent: Vec<(Vec<u8>, Vec<u8>)> =
            sent.into_iter().map(|(name, value)| (name.into(), value.into())).collect();
        got.sort();
        sent.sort();
        if got != sent {
            bail!("response {number}: {got:?}");
        }
    }
    Ok(())
}

async fn connection(ours: usize, theirs: u32) -> anyhow::Result<()> {
    let (near, far) = duplex(1 << 16);
    let mut server = Server {
        stream: far,
        encoder: Encoder::new(ours),
        decoder: Decoder::new(4096),
        table: ours,
    };
    let (sender, connection) = h2::client::Builder::new()
        .header_table_size(theirs)
        .max_header_list_size(1 << 20)
        .handshake(near)
        .await?;
    let exchange = async { tokio::try_join!(server.run(), client(sender)) };
    tokio::select! {
        ended = connection => bail!("the connection ended early: {ended:?}"),
        done = exchange => done.map(|_| ()),
    }
}

#[test]
fn requests_of_h2_are_read_and_it_reads_the_responses() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    for (ours, theirs) in [(4096, 4096), (0, 0), (100, 256), (65_536, 65_536), (4096, 100)] {
        let done = runtime.block_on(connection(ours, theirs));
        done.with_context(|| format!("tables of {ours} and {theirs} bytes")).unwrap();
    }
}
