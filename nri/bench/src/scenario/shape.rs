//! The shape of a message: one with every field filled, obtained by deserializing the message from
//! nothing.
//!
//! A scenario's message is converted to the form that the message has as JSON, and an unknown key
//! is rejected with its path:
//! - a wrapper (`OptionalInt64`, ...) may be written as its bare value, `limit = 1024` for
//!   `limit = { value = 1024 }`;
//! - an enumeration may be written by its name: `policy = "SCHED_BATCH"`.

use serde::{
    Serialize,
    de::{self, DeserializeOwned, IntoDeserializer, Visitor, value},
};
use serde_json::{Map, Value};

use nri::proto::{
    ContainerState, IoPrioClass, LinuxSchedulerFlag, LinuxSchedulerPolicy, MpolFlag, MpolMode,
    security_profile::ProfileType,
};

/// The key of a map's one entry.
const ANY: &str = "*";

/// Why a value does not fit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Misfit {
    /// Keys from the message to the misfit.
    pub path: Vec<String>,
    pub why: String,
}

/// A value of a scenario as the message `T`, or its misfit.
pub(super) fn read<T: DeserializeOwned + Serialize>(given: &Value) -> Result<(T, Value), Misfit> {
    let sample = T::deserialize(Filled).map_err(|e| misfit(e.to_string()))?;
    let shape = serde_json::to_value(sample).map_err(|e| misfit(e.to_string()))?;
    let whole = fit(&shape, given, "")?;
    let message = serde_json::from_value(whole.clone()).map_err(|e| misfit(e.to_string()))?;
    Ok((message, whole))
}

/// A message with every field, for tests.
#[cfg(test)]
pub fn filled<T: DeserializeOwned>() -> T {
    T::deserialize(Filled).expect("every type of a message can be filled")
}

fn misfit(why: String) -> Misfit {
    Misfit {
        path: Vec::new(),
        why,
    }
}

impl Misfit {
    /// The misfit as seen from the parent with this key.
    fn below(mut self, key: impl Into<String>) -> Self {
        self.path.insert(0, key.into());
        self
    }
}

fn fit(shape: &Value, given: &Value, key: &str) -> Result<Value, Misfit> {
    match (shape, given) {
        (Value::Object(shape), Value::Object(given)) => {
            let mut whole = Map::new();
            for (key, given) in given {
                // A map has any key.
                let Some(shape) = shape.get(ANY).or_else(|| shape.get(key)) else {
                    let known: Vec<_> = shape.keys().map(|k| format!("`{k}`")).collect();
                    let known = known.join(", ");
                    let why = format!("unknown field `{key}`, expected one of {known}");
                    return Err(misfit(why).below(key));
                };
                let fits = fit(shape, given, key).map_err(|misfit| misfit.below(key))?;
                whole.insert(key.clone(), fits);
            }
            Ok(Value::Object(whole))
        }
        (Value::Object(fields), bare) if fields.len() == 1 && fields.contains_key("value") => {
            let value = fit(&fields["value"], bare, key)?;
            Ok(Value::Object(Map::from_iter([("value".to_owned(), value)])))
        }
        (Value::Array(shape), Value::Array(given)) => {
            let fits = given.iter().enumerate().map(|(at, given)| {
                fit(&shape[0], given, key).map_err(|misfit| misfit.below(at.to_string()))
            });
            fits.collect()
        }
        (Value::Number(_), Value::String(name)) => enumeration(key, name)
            .map(Value::from)
            // Numbers above TOML's integers.
            .or_else(|| name.parse::<u64>().ok().map(Value::from))
            .ok_or_else(|| misfit(format!("{name:?} is not a number, nor the name of a value"))),
        (Value::Number(_), Value::Number(_))
        | (Value::String(_), Value::String(_))
        | (Value::Bool(_), Value::Bool(_)) => Ok(given.clone()),
        (shape, given) => Err(misfit(format!("{given} is not {}", kind(shape)))),
    }
}

fn kind(shape: &Value) -> &'static str {
    match shape {
        Value::Object(_) => "a table",
        Value::Array(_) => "a list",
        Value::Number(_) => "a number",
        Value::Bool(_) => "true or false",
        _ => "a text",
    }
}

/// The number of a name, by its field.
fn enumeration(key: &str, name: &str) -> Option<i32> {
    match key {
        "class" => IoPrioClass::from_str_name(name).map(|e| e as i32),
        "policy" => LinuxSchedulerPolicy::from_str_name(name).map(|e| e as i32),
        "mode" => MpolMode::from_str_name(name).map(|e| e as i32),
        "flags" => LinuxSchedulerFlag::from_str_name(name)
            .map(|e| e as i32)
            .or_else(|| MpolFlag::from_str_name(name).map(|e| e as i32)),
        "state" => ContainerState::from_str_name(name).map(|e| e as i32),
        "profile_type" => ProfileType::from_str_name(name).map(|e| e as i32),
        _ => None,
    }
}

/// Deserializes anything, with every field present, one element in each list and one entry in each
/// map.
#[derive(Clone, Copy)]
struct Filled;

type Wrong = value::Error;

macro_rules! scalars {
    ($($method:ident $visit:ident $value:expr;)*) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
            visitor.$visit($value)
        })*
    };
}

impl<'de> de::Deserializer<'de> for Filled {
    type Error = Wrong;

    scalars! {
        deserialize_bool visit_bool true;
        deserialize_i8 visit_i8 1;
        deserialize_i16 visit_i16 1;
        deserialize_i32 visit_i32 1;
        deserialize_i64 visit_i64 1;
        deserialize_u8 visit_u8 1;
        deserialize_u16 visit_u16 1;
        deserialize_u32 visit_u32 1;
        deserialize_u64 visit_u64 1;
        deserialize_f32 visit_f32 1.0;
        deserialize_f64 visit_f64 1.0;
        deserialize_str visit_str ANY;
        deserialize_string visit_str ANY;
        deserialize_identifier visit_str ANY;
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        visitor.visit_some(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        visitor.visit_seq(Once(true))
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        visitor.visit_map(Fields(&[ANY]))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Wrong> {
        visitor.visit_map(Fields(fields))
    }

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Wrong> {
        Err(de::Error::custom("a message has no fields without a type"))
    }

    serde::forward_to_deserialize_any! {
        char bytes byte_buf unit unit_struct newtype_struct tuple tuple_struct enum ignored_any
    }
}

/// A list with one element.
struct Once(bool);

impl<'de> de::SeqAccess<'de> for Once {
    type Error = Wrong;

    fn next_element_seed<T: de::DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Wrong> {
        if std::mem::take(&mut self.0) {
            seed.deserialize(Filled).map(Some)
        } else {
            Ok(None)
        }
    }
}

/// A map with these keys.
struct Fields(&'static [&'static str]);

impl<'de> de::MapAccess<'de> for Fields {
    type Error = Wrong;

    fn next_key_seed<K: de::DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Wrong> {
        let Some((key, rest)) = self.0.split_first() else {
            return Ok(None);
        };
        self.0 = rest;
        seed.deserialize((*key).into_deserializer()).map(Some)
    }

    fn next_value_seed<T: de::DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, Wrong> {
        seed.deserialize(Filled)
    }
}

#[cfg(test)]
mod tests {
    use nri::proto::{ContainerAdjustment, PodSandbox};
    use serde_json::json;

    use super::*;

    #[test]
    fn a_wrapper_may_be_written_as_its_value_and_an_enumeration_by_its_name() {
        let given = json!({"linux": {
            "resources": {"memory": {"limit": 7}, "cpu": {"shares": {"value": 2}}},
            "scheduler": {"policy": "SCHED_BATCH", "flags": ["SCHED_FLAG_RECLAIM"]},
            "rdt": {"schemata": ["L3:0=f"]},
        }});
        let (adjust, _) = read::<ContainerAdjustment>(&given).expect("it fits");
        let linux = adjust.linux.expect("given");
        let resources = linux.resources.expect("given");
        assert_eq!(
            resources.memory.and_then(|m| m.limit).map(|l| l.value),
            Some(7)
        );
        assert_eq!(
            resources.cpu.and_then(|c| c.shares).map(|s| s.value),
            Some(2)
        );
        let scheduler = linux.scheduler.expect("given");
        assert_eq!((scheduler.policy, scheduler.flags), (4, vec![1]));
        let schemata = linux.rdt.and_then(|r| r.schemata).expect("given");
        assert_eq!(schemata.value, ["L3:0=f"]);
    }

    #[test]
    fn a_key_that_the_message_does_not_have_is_named_with_its_path() {
        let given = json!({"linux": {"resources": {"memory": {"limitt": 7}}}});
        let misfit = read::<ContainerAdjustment>(&given).expect_err("a typo");
        assert_eq!(misfit.path, ["linux", "resources", "memory", "limitt"]);
        assert!(
            misfit
                .why
                .contains("unknown field `limitt`, expected one of `"),
            "{misfit:?}"
        );
        let given = json!({"annotations": {"anything": "goes"}, "ips": "10.0.0.1"});
        let misfit = read::<PodSandbox>(&given).expect_err("no list");
        assert_eq!(
            (misfit.path.join("."), misfit.why.as_str()),
            ("ips".into(), "\"10.0.0.1\" is not a list")
        );
    }
}
