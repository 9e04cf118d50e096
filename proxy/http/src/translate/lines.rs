//! HTTP/1 heads being written into a pooled buffer.

use leno_hpack::{Block, Field};

use super::Carried;
use crate::head::{HeadError, TOKEN, is_text};
use crate::pool::{Buffer, Class};

/// What a head needs besides its fields: first line, `Connection`, framing, `Host`.
const OVERHEAD: usize = 1024;

/// A head as bytes.
#[derive(Debug, Default)]
pub(crate) struct Rendered {
    buffer: Buffer,
    length: usize,
}

impl Rendered {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.buffer[..self.length]
    }
}

/// Writes lines. Names come out in the style of `carried`, in lower case without it.
pub(super) struct Lines<'c> {
    out: Rendered,
    pub(super) carried: Option<Carried<'c>>,
}

impl<'c> Lines<'c> {
    /// With room for the fields of `block`, whose sizes count 32 bytes each on top, and `more`.
    pub(super) fn new(
        block: &Block,
        more: usize,
        carried: Option<Carried<'c>>,
    ) -> Result<Self, HeadError> {
        let needed = block.size() + more + OVERHEAD;
        let mut class = Class::SMALLEST;
        while class.size() < needed {
            if class.larger() == class {
                return Err(HeadError::TooLarge);
            }
            class = class.larger();
        }
        let out = Rendered { buffer: Buffer::take(class), length: 0 };
        Ok(Self { out, carried })
    }

    pub(super) fn put(&mut self, bytes: &[u8]) {
        let end = self.out.length + bytes.len();
        self.out.buffer[self.out.length..end].copy_from_slice(bytes);
        self.out.length = end;
    }

    pub(super) fn put_number(&mut self, mut number: u64) {
        let mut digits = [0; 20];
        let mut at = digits.len();
        loop {
            at -= 1;
            digits[at] = b'0' + (number % 10) as u8;
            number /= 10;
            if number == 0 {
                break;
            }
        }
        self.put(&digits[at..]);
    }

    /// A name and the colon behind it.
    pub(super) fn name(&mut self, name: &[u8]) {
        match self.carried {
            None => self.put(name),
            Some(carried) => {
                let Rendered { buffer, length } = &mut self.out;
                carried.push_name(name, &mut |byte| {
                    buffer[*length] = byte;
                    *length += 1;
                });
            }
        }
        self.put(b": ");
    }

    /// A whole line. The bytes are known to fit.
    pub(super) fn line(&mut self, name: &[u8], value: &[u8]) {
        self.name(name);
        self.put(value);
        self.put(b"\r\n");
    }

    /// A line of a field that came from elsewhere.
    pub(super) fn field(&mut self, field: &Field<'_>) -> Result<(), HeadError> {
        check(field)?;
        self.line(field.name(), field.value());
        Ok(())
    }

    pub(super) fn finish(mut self) -> Rendered {
        self.put(b"\r\n");
        self.out
    }
}

/// What would break out of a line of HTTP/1, whoever has let it through.
pub(super) fn check(field: &Field<'_>) -> Result<(), HeadError> {
    let name = field.name();
    if name.is_empty() || !name.iter().all(|byte| TOKEN[*byte as usize]) {
        return Err(HeadError::Name);
    }
    if !field.value().iter().all(|byte| is_text(*byte)) {
        return Err(HeadError::Control);
    }
    Ok(())
}
