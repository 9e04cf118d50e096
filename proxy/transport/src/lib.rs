//! Sockets of the data plane: listeners, original destination, buffers, opaque relay.
