//! Prints lines for people on standard output and standard error, and ignores failures.
//!
//! If a write fails, the macros of the standard library panic, and the program ends with exit code 101. But most
//! programs must go on with their work even if the reader of their output has gone; their exit code says how the work
//! ended. If the text is the program's only purpose, as in `leno stat`, the caller uses a function that returns the
//! error instead, and ends.

use std::fmt;
use std::io::{self, Write};

/// Prints a line to standard error, like `eprintln`, but ignores failures.
#[macro_export]
macro_rules! note {
    ($($text:tt)*) => { $crate::write_error(format_args!("{}\n", format_args!($($text)*))) };
}

/// Prints a text to standard error, like `eprint`, but ignores failures.
#[macro_export]
macro_rules! note_text {
    ($($text:tt)*) => { $crate::write_error(format_args!($($text)*)) };
}

/// Prints a line to standard output, like `println`, but ignores failures.
#[macro_export]
macro_rules! print_line {
    () => { $crate::write_output(format_args!("\n")) };
    ($($text:tt)*) => { $crate::write_output(format_args!("{}\n", format_args!($($text)*))) };
}

/// Prints a text to standard output, like `print`, but ignores failures.
#[macro_export]
macro_rules! print_text {
    ($($text:tt)*) => { $crate::write_output(format_args!($($text)*)) };
}

/// See [`note!`] and [`note_text!`].
pub fn write_error(text: fmt::Arguments<'_>) {
    write(io::stderr().lock(), text);
}

/// See [`print_line!`] and [`print_text!`].
pub fn write_output(text: fmt::Arguments<'_>) {
    write(io::stdout().lock(), text);
}

fn write(mut stream: impl Write, text: fmt::Arguments<'_>) {
    // It may fail because the reader has closed the pipe (EPIPE), or because the disk is full. If the stream has no
    // descriptor (EBADF), the standard library itself ignores the failure.
    let _unread = stream.write_fmt(text).and_then(|()| stream.flush());
}
