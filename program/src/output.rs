//! Lines for people on standard output and standard error, whose reader may be gone.
//!
//! The macros of the standard library panic then, and end the program with exit code 101. A program does not fail for
//! want of a reader: what it does goes on, and its exit code says how it ended. Where the text is all that the program is
//! for, as that of `leno stat`, the caller prints it with a function that returns the error, and ends.

use std::fmt;
use std::io::{self, Write};

/// Prints a line to standard error, as `eprintln`, if that has a reader.
#[macro_export]
macro_rules! note {
    ($($text:tt)*) => { $crate::write_error(format_args!("{}\n", format_args!($($text)*))) };
}

/// Prints a text to standard error, as `eprint`, if that has a reader.
#[macro_export]
macro_rules! note_text {
    ($($text:tt)*) => { $crate::write_error(format_args!($($text)*)) };
}

/// Prints a line to standard output, as `println`, if that has a reader.
#[macro_export]
macro_rules! print_line {
    () => { $crate::write_output(format_args!("\n")) };
    ($($text:tt)*) => { $crate::write_output(format_args!("{}\n", format_args!($($text)*))) };
}

/// Prints a text to standard output, as `print`, if that has a reader.
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
    // It has no reader: a closed pipe (EPIPE), a full disk. Without a descriptor (EBADF) the standard library drops the text.
    let _unread = stream.write_fmt(text).and_then(|()| stream.flush());
}
