//! Tests the code with the examples of the RFC and by round trips.

use super::*;

fn coded(plain: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    encode(plain, &mut out);
    assert_eq!(out.len(), encoded_length(plain));
    out
}

fn plain(coded: &[u8]) -> Result<Vec<u8>, Malformed> {
    let mut out = Vec::new();
    decode(coded, &mut out).map(|()| out)
}

#[test]
fn examples_of_the_rfc() {
    let example = [0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff];
    assert_eq!(coded(b"www.example.com"), example);
    assert_eq!(plain(&example).unwrap(), b"www.example.com");
    assert_eq!(coded(b"no-cache"), [0xa8, 0xeb, 0x10, 0x64, 0x9c, 0xbf]);
}

#[test]
fn every_pair_of_bytes() {
    for a in 0..=255 {
        for b in 0..=255 {
            assert_eq!(plain(&coded(&[a, b])).unwrap(), [a, b]);
        }
    }
}

/// Long and short codes in every order, across refills.
#[test]
fn long_and_short_codes_mixed() {
    let mut state = 1u32;
    for length in 0..300 {
        let text: Vec<u8> = (0..length)
            .map(|_| {
                state = state.wrapping_mul(0x0019_660d).wrapping_add(0x3c6e_f35f);
                if state >> 31 == 0 { (state >> 8) as u8 } else { b'a' + (state >> 8) as u8 % 26 }
            })
            .collect();
        assert_eq!(plain(&coded(&text)).unwrap(), text);
    }
}

#[test]
fn padding_and_eos() {
    // '0' is 00000, followed by three bits of padding, which are all ones.
    assert_eq!(plain(&[0x07]).unwrap(), b"0");
    assert_eq!(plain(&[0x06]), Err(Malformed), "padding that is not EOS's beginning");
    assert_eq!(plain(&[0x07, 0xff]), Err(Malformed), "padding of eleven bits");
    assert_eq!(plain(&[0xff]), Err(Malformed), "padding of eight bits and nothing else");
    assert_eq!(plain(&[0xff, 0xff, 0xff, 0xff]), Err(Malformed), "EOS");
    assert_eq!(plain(&[0xff, 0xff, 0xff, 0xfc]), Err(Malformed), "EOS and two zeros");
    assert_eq!(plain(&[]).unwrap(), b"");
}
