//! Interfaces of any network namespace, by rtnetlink.

use std::{
    os::fd::{AsFd, AsRawFd, OwnedFd},
    thread,
};

use futures_util::TryStreamExt;
use rtnetlink::{
    Handle, LinkMessageBuilder, LinkUnspec,
    packet_route::link::{LinkAttribute, LinkMessage},
};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Links of the thread's network namespace.
pub(crate) struct Links(pub(crate) Handle);

impl Links {
    pub(crate) async fn find(&self, name: &str) -> Result<Option<LinkMessage>, String> {
        self.find_by(|link| name_of(link).as_deref() == Some(name))
            .await
    }

    pub(crate) async fn find_alias(&self, alias: &str) -> Result<Option<LinkMessage>, String> {
        self.find_by(|link| {
            let mut attributes = link.attributes.iter();
            attributes.any(|a| matches!(a, LinkAttribute::IfAlias(is) if is == alias))
        })
        .await
    }

    async fn find_by(
        &self,
        fits: impl Fn(&LinkMessage) -> bool,
    ) -> Result<Option<LinkMessage>, String> {
        let all = self.0.link().get().execute().try_collect::<Vec<_>>().await;
        let all = all.map_err(|e| format!("interfaces cannot be listed: {e}"))?;
        Ok(all.into_iter().find(fits))
    }

    pub(crate) async fn set(&self, message: LinkMessageBuilder<LinkUnspec>) -> Result<(), String> {
        let set = self.0.link().set(message.build()).execute().await;
        set.map_err(|e| e.to_string())
    }

    /// Sets the link down, gives it an unused name on the other side, and moves it. If that fails,
    /// it gets its name back.
    pub(crate) async fn send_away(
        &self,
        link: &LinkMessage,
        name: &str,
        target: &OwnedFd,
    ) -> Result<String, String> {
        let index = link.header.index;
        let temporary = format!("temp_{index}");
        self.set(message(index).down()).await?;
        self.set(message(index).name(&temporary)).await?;
        let target = message(index).setns_by_fd(target.as_raw_fd());
        if let Err(cause) = self.set(target).await {
            self.set(message(index).name(name)).await?;
            return Err(cause);
        }
        Ok(temporary)
    }
}

/// Begins a change of this interface.
pub(crate) fn message(index: u32) -> LinkMessageBuilder<LinkUnspec> {
    LinkUnspec::new_with_index(index)
}

pub(crate) fn name_of(link: &LinkMessage) -> Option<String> {
    link.attributes.iter().find_map(|a| match a {
        LinkAttribute::IfName(name) => Some(name.clone()),
        _ => None,
    })
}

/// Runs the work in a network namespace, on a new thread that ends with it: a thread that has
/// entered another namespace must not be reused.
pub(crate) async fn within<T: Send + 'static>(
    netns: &OwnedFd,
    work: impl AsyncFnOnce(Links) -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    let netns = clone(netns)?;
    let (done, result) = tokio::sync::oneshot::channel();
    thread::spawn(move || {
        let there = move_into_link_name_space(netns.as_fd(), Some(LinkNameSpaceType::Network));
        let result = match there {
            Err(e) => Err(format!("network namespace: {e}")),
            Ok(()) => on_this_thread(work),
        };
        // No receiver if the runtime gave up; the work is completed anyway.
        let _ = done.send(result);
    });
    result
        .await
        .map_err(|_| "the thread for it ended early".to_owned())?
}

fn on_this_thread<T>(work: impl AsyncFnOnce(Links) -> Result<T, String>) -> Result<T, String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = runtime.map_err(|e| e.to_string())?;
    runtime.block_on(async {
        let (connection, handle, _) = rtnetlink::new_connection().map_err(|e| e.to_string())?;
        let connection = tokio::spawn(connection);
        let result = work(Links(handle)).await;
        connection.abort();
        result
    })
}

/// Another handle to the same namespace.
pub(crate) fn clone(fd: &OwnedFd) -> Result<OwnedFd, String> {
    fd.try_clone().map_err(|e| e.to_string())
}
