//! The notation of a CRI service: per method its request, its response, and the expression for it.

/// `fn name(request: Asked) -> Answered { value }` expands to the method
///
/// ```ignore
/// async fn name(&self, request: Request<Asked>) -> Answer<Answered> {
///     let request = request.into_inner();
///     answer(value)
/// }
/// ```
///
/// `_` ignores the request. The first line passes `self`, which a macro cannot see otherwise.
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
