//! How a service of CRI is written down: for each method what is asked, what is answered, and where that comes from.

/// `fn name(request: Asked) -> Answered { value }` is the method
///
/// ```ignore
/// async fn name(&self, request: Request<Asked>) -> Answer<Answered> {
///     let request = request.into_inner();
///     answer(value)
/// }
/// ```
///
/// A request that says nothing is `_`. The first line names `self`, as a macro cannot see a word that is not given to it.
macro_rules! relays {
    (
        impl $service:ident for $cri:ty as |$self:ident|;
        $(type $stream:ident = $of:ty;)*
        $(fn $method:ident($request:tt: $asked:ty) -> $answered:ty { $($value:tt)* })*
    ) => {
        #[tonic::async_trait]
        impl $service for $cri {
            $(type $stream = $of;)*

            $(async fn $method(&$self, request: tonic::Request<$asked>) -> Answer<$answered> {
                let $request = request.into_inner();
                answer({ $($value)* })
            })*
        }
    };
}

pub(super) use relays;
