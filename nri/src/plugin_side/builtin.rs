//! In-process plugins of the library: the default validator (NRI-630…643), index `00`. A runtime
//! can add any [`Handlers`].

use crate::{plugin_id::PluginId, plugin_side::handlers::Handlers, validate::DefaultValidator};

/// The default validator as a plugin.
pub(crate) fn default_validator(validator: DefaultValidator) -> (PluginId, Handlers) {
    let id = PluginId {
        index: "00".to_owned(),
        name: "default-validator".to_owned(),
    };
    let handlers = Handlers::new().validate_container_adjustment(move |request| {
        let verdict = validator.check(&request);
        async move { Ok(verdict?) }
    });
    (id, handlers)
}
