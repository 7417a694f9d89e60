//! Annotations of a pod, as plugins and the default validator read them.

use proto_nri::PodSandbox;

/// The annotation of its pod that applies to a container: `KEY/container.<name>`, else `KEY/pod`,
/// else `KEY`; the first that exists, even if it is empty (NRI-642).
pub fn effective_annotation<'a>(
    pod: &'a PodSandbox,
    key: &str,
    container: &str,
) -> Option<&'a str> {
    let of = |key: String| pod.annotations.get(&key);
    of(format!("{key}/container.{container}"))
        .or_else(|| of(format!("{key}/pod")))
        .or_else(|| of(key.to_owned()))
        .map(String::as_str)
}

/// A boolean as Go writes it.
pub fn go_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Some(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Some(false),
        _ => None,
    }
}
