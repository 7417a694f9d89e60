//! How a service of CRI is written down: for each method what is asked, what is answered, and where that comes from.

/// `fn name(Asked) -> Answered { value }` is the method
///
/// ```ignore
/// async fn name(&self, request: Request<Asked>) -> Answer<Answered> {
///     let request = request.into_inner();
///     answer(value)
/// }
/// ```
///
/// The first line names `self` and `request`, as a macro cannot see words that are not given to it.
macro_rules! relays {
    (
        impl $service:ident for $cri:ty as |$self:ident, $request:ident|;
        $(type $stream:ident = $of:ty;)*
        $(fn $method:ident($asked:ty) -> $answered:ty { $value:expr })*
    ) => {
        #[allow(unused_variables, reason = "some requests say nothing")]
        #[tonic::async_trait]
        impl $service for $cri {
            $(type $stream = $of;)*

            $(async fn $method(&$self, request: tonic::Request<$asked>) -> Answer<$answered> {
                let $request = request.into_inner();
                answer($value)
            })*
        }
    };
}

pub(super) use relays;
