//! The offset and size of each field of a shared structure, for comparison with BTF.

use std::mem::offset_of;

use crate::{CaptureConfig, PrefixKey, SocketAddress};

/// The layout of one structure in Rust.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// Its name in C.
    pub name: &'static str,
    /// In bytes.
    pub size: usize,
    /// The fields, in order.
    pub fields: &'static [Field],
}

/// One field of a structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Its name, the same in C and Rust.
    pub name: &'static str,
    /// In bytes from the start.
    pub offset: usize,
    /// In bytes.
    pub size: usize,
}

/// The size of a field's type, inferred from an accessor that is never called.
pub(crate) const fn size_of_field<S, T>(_: fn(&S) -> &T) -> usize {
    size_of::<T>()
}

macro_rules! layout {
    ($type:ty as $name:literal { $($field:ident),* $(,)? }) => {
        Layout {
            name: $name,
            size: size_of::<$type>(),
            fields: &[$(Field {
                name: stringify!($field),
                offset: offset_of!($type, $field),
                size: size_of_field(|value: &$type| &value.$field),
            }),*],
        }
    };
}

/// The structures of the capture programs that kernel and user space share.
pub const LAYOUTS: &[Layout] = &[
    layout!(SocketAddress as "socket_address" { ip, port, family }),
    layout!(CaptureConfig as "capture_config" {
        proxy_cgroup_id,
        netns_cookie,
        outbound_port,
        inbound_port,
        admin_port,
        fail_closed,
        has_excluded,
        proxy_uid,
        datagrams,
    }),
    layout!(PrefixKey as "prefix_key" { length, ip }),
];
