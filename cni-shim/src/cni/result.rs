//! Parses CNI results and errors of arbitrary programs. Pure.

use std::net::IpAddr;

use serde_json::{Map, Value};

use super::conflist::{Version, shorten};
use crate::addr::Cidr;

/// A plugin's own error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PluginError {
    /// CRI-519; 999 if the plugin gave none.
    pub(crate) code: u64,
    pub(crate) message: String,
}

/// libcni's code for an error without one.
pub(crate) const UNKNOWN_CODE: u64 = 999;
/// Limit of a program's text in an error line.
const MESSAGE_MAX: usize = 1024;

/// Parses an ADD's result. Without a version it has the configuration's, `version` (CRI-513).
pub(crate) fn parse_result(stdout: &[u8], version: Version) -> Result<Value, String> {
    let mut value: Value = serde_json::from_slice(stdout).map_err(|e| format!("not JSON: {e}"))?;
    let map = value.as_object_mut().ok_or("not a JSON object")?;
    if let Some(stated) = map.get("cniVersion").and_then(Value::as_str)
        && !stated.is_empty()
        && Version::known(stated).is_none()
    {
        return Err(format!("unsupported result version {:?}", shorten(stated)));
    }
    map.insert("cniVersion".into(), version.as_str().into());
    if version < Version::V1_0_0 {
        name_families(map);
    }
    Ok(value)
}

/// Before 1.0.0 every address had a field for its family, which later plugins omit.
fn name_families(result: &mut Map<String, Value>) {
    let ips = result
        .get_mut("ips")
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten();
    for ip in ips {
        if let (Some(cidr), Some(ip)) = (one_address(ip), ip.as_object_mut()) {
            let family = if cidr.ip.is_ipv4() { "4" } else { "6" };
            ip.entry("version").or_insert_with(|| family.into());
        }
    }
}

/// The addresses of `interface` in the sandbox; all addresses if none is assigned to it (CRI-536).
/// IPv4 before IPv6, otherwise in the result's order (CRI-117).
pub(crate) fn addresses(result: &Value, interface: &str) -> Result<Vec<IpAddr>, String> {
    let list = |key: &str| {
        result
            .get(key)
            .and_then(Value::as_array)
            .map_or(&[][..], Vec::as_slice)
    };
    let interfaces = list("interfaces");
    let in_pod = |entry: &&Value| {
        let text = |key: &str| entry.get(key).and_then(Value::as_str).unwrap_or_default();
        text("name") == interface && !text("sandbox").is_empty()
    };
    let ips: Vec<&Value> = list("ips").iter().filter(|ip| ip.is_object()).collect();
    let is_ours = |ip: &&&Value| {
        let index = ip
            .get("interface")
            .and_then(Value::as_u64)
            .and_then(|index| usize::try_from(index).ok());
        index
            .and_then(|index| interfaces.get(index))
            .as_ref()
            .is_some_and(in_pod)
    };
    let mut chosen: Vec<_> = ips.iter().filter(is_ours).copied().collect();
    if chosen.is_empty() {
        chosen = ips;
    }
    let mut found = Vec::new();
    for ip in chosen {
        found.push(one_address(ip).ok_or("invalid address")?.ip);
    }
    found.sort_by_key(IpAddr::is_ipv6); // stable: the order within a family stays
    if found.is_empty() {
        Err(format!("no address for {interface}"))
    } else {
        Ok(found)
    }
}

/// Parses the output of a failed plugin: an error object, or any text.
pub(crate) fn parse_error(stdout: &[u8], stderr: &[u8]) -> PluginError {
    let value: Value = serde_json::from_slice(stdout).unwrap_or_default();
    let text = |key: &str| value.get(key).and_then(Value::as_str);
    if let Some(message) = text("msg") {
        let details = text("details").filter(|details| !details.is_empty());
        let message = details.map_or(message.to_owned(), |details| {
            format!("{message}; {details}")
        });
        let code = value.get("code").and_then(Value::as_u64);
        return PluginError {
            code: code.unwrap_or(UNKNOWN_CODE),
            message: one_line(&message),
        };
    }
    let text = [stdout, stderr]
        .into_iter()
        .map(String::from_utf8_lossy)
        .find(|text| !text.trim().is_empty());
    PluginError {
        code: UNKNOWN_CODE,
        message: text.map_or("no reason given".into(), |text| one_line(&text)),
    }
}

/// Of an entry of `ips`.
fn one_address(ip: &Value) -> Option<Cidr> {
    ip.get("address")?.as_str()?.parse().ok()
}

/// A program's text as part of an error line.
fn one_line(text: &str) -> String {
    let clean: String = text
        .trim()
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    clean.chars().take(MESSAGE_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn the_pods_interface_decides_and_ipv4_comes_first() {
        let result = json!({
            "interfaces": [{"name": "br0"}, {"name": "veth1"}, {"name": "eth0", "mac": "02:00:00:00:00:01", "sandbox": "/n"}],
            "ips": [
                {"address": "fd00::2/64", "interface": 2},
                {"address": "10.9.9.9/24", "interface": 0},
                {"address": "10.0.0.2/24", "gateway": "10.0.0.1", "interface": 2},
            ],
        });
        let found = addresses(&result, "eth0").expect("has addresses");
        assert_eq!(
            found.iter().map(ToString::to_string).collect::<Vec<_>>(),
            ["10.0.0.2", "fd00::2"]
        );
    }

    #[test]
    fn addresses_without_an_interface_are_all_taken_and_none_at_all_is_an_error() {
        let all = json!({"ips": [{"version": "4", "address": "10.0.0.2/24"}]});
        assert_eq!(addresses(&all, "eth0").expect("has one").len(), 1);
        assert!(addresses(&json!({"ips": []}), "eth0").is_err());
        assert!(addresses(&json!({"ips": [{"address": "nonsense"}]}), "eth0").is_err());
    }

    #[test]
    fn a_result_without_a_version_has_the_configurations() {
        let old = Version::known("0.4.0").expect("known");
        let result =
            parse_result(br#"{"ips":[{"address":"10.0.0.2/24"}]}"#, old).expect("is valid");
        assert_eq!(
            (&result["cniVersion"], &result["ips"][0]["version"]),
            (&json!("0.4.0"), &json!("4"))
        );
        assert!(parse_result(b"[]", old).is_err());
        assert!(parse_result(br#"{"cniVersion":"7.0.0"}"#, old).is_err());
    }

    #[test]
    fn an_error_keeps_its_code_and_raw_text_becomes_one_line() {
        let error = parse_error(
            br#"{"cniVersion":"1.0.0","code":11,"msg":"busy","details":"later"}"#,
            b"",
        );
        assert_eq!(
            error,
            PluginError {
                code: 11,
                message: "busy; later".into()
            }
        );
        let raw = parse_error(b"", b"panic:\n\tgoroutine 1\n");
        assert_eq!(
            raw,
            PluginError {
                code: UNKNOWN_CODE,
                message: "panic:  goroutine 1".into()
            }
        );
    }

    proptest! {
        #[test]
        fn no_output_panics_or_fills_the_log(out in prop::collection::vec(any::<u8>(), 0..4000)) {
            let error = parse_error(&out, &out);
            prop_assert!(error.message.chars().count() <= MESSAGE_MAX && !error.message.contains('\n'));
            let _ = parse_result(&out, Version::V1_1_0).map(|result| addresses(&result, "eth0"));
        }
    }
}
