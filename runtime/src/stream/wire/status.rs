//! Result of an exec or attach on the client's error stream: a `Status` of k8s.io/apimachinery from
//! protocol v4 on; before, a line of text, and nothing for success.

use serde_json::json;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Success,
    /// The program's own code, which is not zero.
    Exit(i32),
    /// It did not run, or not to its end; one line.
    Failed(String),
}

/// The format that a client understands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    Json,
    Text,
}

impl Outcome {
    pub fn of_code(code: i32) -> Self {
        match code {
            0 => Self::Success,
            code => Self::Exit(code),
        }
    }

    /// The complete content of the error stream.
    pub fn encode(&self, format: Format) -> Vec<u8> {
        let exited =
            |code| format!("command terminated with non-zero exit code: exit status {code}");
        let internal = |why: &str| format!("Internal error occurred: {why}");
        let document = match (format, self) {
            (Format::Text, Self::Success) => return Vec::new(),
            (Format::Text, Self::Exit(code)) => return exited(*code).into(),
            (Format::Text, Self::Failed(why)) => return internal(why).into(),
            (Format::Json, Self::Success) => json!({ "metadata": {}, "status": "Success" }),
            (Format::Json, Self::Exit(code)) => json!({
                "metadata": {},
                "status": "Failure",
                "reason": "NonZeroExitCode",
                "message": exited(*code),
                "details": { "causes": [{ "reason": "ExitCode", "message": code.to_string() }] },
            }),
            (Format::Json, Self::Failed(why)) => json!({
                "metadata": {},
                "status": "Failure",
                "reason": "InternalError",
                "message": internal(why),
                "details": { "causes": [{ "message": why }] },
                "code": 500,
            }),
        };
        document.to_string().into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exit_code_is_a_cause_that_clients_parse() {
        let text = Outcome::of_code(7).encode(Format::Json);
        let status: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
        assert_eq!(status["status"], "Failure");
        assert_eq!(status["reason"], "NonZeroExitCode");
        let cause = &status["details"]["causes"][0];
        assert_eq!(
            (&cause["reason"], &cause["message"]),
            (&"ExitCode".into(), &"7".into())
        );
    }

    #[test]
    fn success_is_a_document_from_v4_on_and_nothing_before() {
        assert_eq!(
            Outcome::of_code(0).encode(Format::Json),
            br#"{"metadata":{},"status":"Success"}"#
        );
        assert_eq!(Outcome::Success.encode(Format::Text), b"");
        assert!(!Outcome::Exit(1).encode(Format::Text).is_empty());
    }
}
