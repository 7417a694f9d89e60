//! The default configuration as text.

/// The commented default configuration, as `cairn config default` prints it. A test compares it to
/// [`File::default`](super::File::default).
pub const DEFAULT_TEXT: &str = include_str!("default.toml");

/// The manual page of the configuration, as roff: the default with its comments.
pub fn manual() -> String {
    let escaped = |line: &str| format!("\\&{}\n", line.replace('\\', "\\e").replace('-', "\\-"));
    let text: String = DEFAULT_TEXT.lines().map(escaped).collect();
    format!(
        ".TH cairn.toml 5\n.SH NAME\ncairn.toml \\- configuration of cairn\n.SH DESCRIPTION\n\
         Every key is optional; this is the default. \\fBcairn config check FILE\\fR checks a file.\n\
         .PP\n.nf\n{text}.fi\n.SH SEE ALSO\n.BR cairn (1)\n"
    )
}
