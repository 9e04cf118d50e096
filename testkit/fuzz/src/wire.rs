//! Fuzzes messages of the control plane: a decoded value must be the same after it is encoded and decoded again.

use leno_wire::decode::{AddressResource, address, server_policy};
use leno_wire::{ADDRESS_TYPE, SERVER_POLICY_TYPE, encode, names, proto};

pub(crate) fn run(bytes: &[u8]) {
    let Some((kind, value)) = bytes.split_first() else { return };
    let any =
        |type_url: &str| proto::Any { type_url: type_url.into(), value: value.to_vec().into() };
    match kind % 3 {
        0 => match address(&any(ADDRESS_TYPE)) {
            Ok(AddressResource::Service(update)) => {
                let Ok(read) = update.apply(None) else { return };
                let again = address(&encode::service(&read)).expect("what was encoded decodes");
                let AddressResource::Service(again) = again else {
                    panic!("not a service: {again:?}")
                };
                assert_eq!(again.apply(None).expect("it is whole"), read);
            }
            Ok(AddressResource::Workload(read)) => {
                let again = address(&encode::workload(&read)).expect("what was encoded decodes");
                assert_eq!(again, AddressResource::Workload(read));
            }
            Err(_) => {}
        },
        1 => {
            let Ok(read) = server_policy(&any(SERVER_POLICY_TYPE)) else { return };
            let again = encode::server_policy(&read);
            assert_eq!(server_policy(&again).expect("what was encoded decodes"), read);
        }
        _ => {
            let Some(ip) = std::str::from_utf8(value).ok().and_then(names::address) else { return };
            assert_eq!(names::address(&names::of_address(ip)), Some(ip));
        }
    }
}
