//! Formats the follow-up commands that messages suggest.

use crate::layout::DEFAULT_MESH;

/// A `leno` command, such as `ps`, for the mesh of this name.
#[must_use]
pub fn command(mesh: &str, words: &str) -> String {
    format!("leno {words}{}", name_option(mesh))
}

/// The option that selects the mesh of this name; empty for the default mesh.
#[must_use]
pub fn name_option(mesh: &str) -> String {
    match mesh {
        DEFAULT_MESH => String::new(),
        _ => format!(" --name {mesh}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_names_a_mesh_that_is_not_the_one_without_a_name() {
        assert_eq!(command(DEFAULT_MESH, "logs -f"), "leno logs -f");
        assert_eq!(command("shop", "logs -f"), "leno logs -f --name shop");
    }
}
