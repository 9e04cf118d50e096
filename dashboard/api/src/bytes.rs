//! Encodes numbers with a variable length (LEB128), which frames and files are made of.

/// Appends a number.
pub(crate) fn put(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

/// Appends a text with its length.
pub(crate) fn put_text(bytes: &mut Vec<u8>, text: &str) {
    put(bytes, text.len() as u64);
    bytes.extend_from_slice(text.as_bytes());
}

/// Reads values in the order in which they were appended. Each method returns `None` if the bytes are invalid.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ByteReader<'a>(&'a [u8]);

impl<'a> ByteReader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The bytes that are left.
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.0
    }

    pub(crate) fn number(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let (first, rest) = self.0.split_first()?;
            self.0 = rest;
            number |= u64::from(first & 0x7f) << shift;
            if first & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    /// A number that is a length or an index.
    pub(crate) fn small(&mut self) -> Option<usize> {
        self.number()?.try_into().ok()
    }

    pub(crate) fn text(&mut self) -> Option<&'a str> {
        let length = self.small()?;
        let (text, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        std::str::from_utf8(text).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_texts_survive() {
        let mut bytes = Vec::new();
        for number in [0, 127, 128, 16_384, u64::MAX] {
            put(&mut bytes, number);
        }
        put_text(&mut bytes, "shop");
        let mut reader = ByteReader::new(&bytes);
        for number in [0, 127, 128, 16_384, u64::MAX] {
            assert_eq!(reader.number(), Some(number));
        }
        assert_eq!(reader.text(), Some("shop"));
        assert!(reader.is_empty());
        assert_eq!(reader.number(), None);
        assert_eq!(ByteReader::new(&[0xff; 11]).number(), None, "longer than 64 bits");
        assert_eq!(ByteReader::new(&[5, b'a']).text(), None);
    }
}
