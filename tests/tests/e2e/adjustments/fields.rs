//! The fields of an adjustment by their paths, such as `linux.resources.memory.limit`: all fields
//! of the protocol's own description, and the fields that a message sets.

use std::collections::{BTreeMap, BTreeSet};

use nri::proto::ContainerAdjustment;
use prost_types::{DescriptorProto, FieldDescriptorProto, field_descriptor_proto::Type};
use prost13::{
    Message as _,
    bytes::Buf,
    encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field},
};

const ROOT: &str = "ContainerAdjustment";

/// Message types by name.
struct Messages(BTreeMap<String, DescriptorProto>);

/// The content of a field.
enum Below<'a> {
    Nothing,
    Message(&'a DescriptorProto),
    /// A map whose values are messages.
    Values(&'a DescriptorProto),
}

impl Messages {
    fn read() -> Self {
        let set = proto_gen::descriptors("nri/nri.proto").expect("it compiles");
        let messages = set.file.into_iter().flat_map(|file| file.message_type);
        Self(messages.map(|m| (m.name().to_owned(), m)).collect())
    }

    fn below<'a>(
        &'a self,
        message: &'a DescriptorProto,
        field: &FieldDescriptorProto,
    ) -> Below<'a> {
        if field.r#type() != Type::Message {
            return Below::Nothing;
        }
        let name = field.type_name().rsplit('.').next().unwrap_or_default();
        if let Some(entry) = message.nested_type.iter().find(|n| n.name() == name) {
            let value = entry.field.iter().find(|f| f.name() == "value");
            let value = value.filter(|f| f.r#type() == Type::Message);
            let name = value.and_then(|f| f.type_name().rsplit('.').next());
            return name.map_or(Below::Nothing, |name| Below::Values(&self.0[name]));
        }
        let target = &self.0[name];
        // An optional value (NRI-731) is one field, not two.
        let wrapper = target.name().starts_with("Optional");
        if wrapper {
            Below::Nothing
        } else {
            Below::Message(target)
        }
    }

    fn walk(&self, message: &DescriptorProto, path: &str, into: &mut BTreeSet<String>) {
        for field in &message.field {
            let path = join(path, field.name());
            match self.below(message, field) {
                Below::Nothing => drop(into.insert(path)),
                Below::Message(target) => self.walk(target, &path, into),
                Below::Values(target) => {
                    self.walk(target, &path, into);
                    into.insert(path);
                }
            }
        }
    }

    fn read_set(
        &self,
        message: &DescriptorProto,
        path: &str,
        mut bytes: &[u8],
        into: &mut BTreeSet<String>,
    ) {
        while bytes.has_remaining() {
            let (number, wire) = decode_key(&mut bytes).expect("a key");
            let mut fields = message.field.iter();
            let field = fields
                .find(|f| u32::try_from(f.number()).is_ok_and(|n| n == number))
                .expect("a field of the message");
            let path = join(path, field.name());
            if wire != WireType::LengthDelimited {
                skip_field(wire, number, &mut bytes, DecodeContext::default()).expect("a value");
                into.insert(path);
                continue;
            }
            let length = decode_varint(&mut bytes).expect("a length");
            let (value, rest) = bytes.split_at(usize::try_from(length).expect("it fits"));
            bytes = rest;
            match self.below(message, field) {
                Below::Nothing => drop(into.insert(path)),
                Below::Message(target) => self.read_set(target, &path, value, into),
                Below::Values(target) => {
                    into.insert(path.clone());
                    self.read_entry(target, &path, value, into);
                }
            }
        }
    }

    /// The value of a map's entry is its field 2.
    fn read_entry(
        &self,
        target: &DescriptorProto,
        path: &str,
        mut bytes: &[u8],
        into: &mut BTreeSet<String>,
    ) {
        while bytes.has_remaining() {
            let (number, _) = decode_key(&mut bytes).expect("a key");
            let length = decode_varint(&mut bytes).expect("a length");
            let (value, rest) = bytes.split_at(usize::try_from(length).expect("it fits"));
            bytes = rest;
            if number == 2 {
                self.read_set(target, path, value, into);
            }
        }
    }
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() {
        name.to_owned()
    } else {
        format!("{path}.{name}")
    }
}

/// Returns all fields with a value.
pub(crate) fn all() -> BTreeSet<String> {
    let messages = Messages::read();
    let mut found = BTreeSet::new();
    messages.walk(&messages.0[ROOT], "", &mut found);
    found
}

/// Returns the fields that an adjustment sets.
pub(crate) fn set_in(adjust: &ContainerAdjustment) -> BTreeSet<String> {
    let messages = Messages::read();
    let mut found = BTreeSet::new();
    messages.read_set(&messages.0[ROOT], "", &adjust.encode_to_vec(), &mut found);
    found
}
