//! Enumerations that others may extend.

/// An enumeration that can hold values without a name: a transparent newtype with named constants. Those of one byte
/// can be fields of wire structs.
macro_rules! open_enum {
    ($(#[$doc:meta])* pub struct $name:ident: u8 { $($body:tt)* }) => {
        open_enum! {
            @define
            #[derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::KnownLayout, zerocopy::Immutable, zerocopy::Unaligned)]
            $(#[$doc])* $name: u8 { $($body)* }
        }
    };
    ($(#[$doc:meta])* pub struct $name:ident: $repr:ty { $($body:tt)* }) => {
        open_enum! { @define $(#[$doc])* $name: $repr { $($body)* } }
    };
    (@define $(#[$meta:meta])* $name:ident: $repr:ty { $($(#[$vdoc:meta])* $variant:ident = $value:expr),* $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(transparent)]
        pub struct $name(pub $repr);

        impl $name {
            $($(#[$vdoc])* pub const $variant: Self = Self($value);)*

            /// The name of the constant with this value, if there is one.
            #[must_use]
            pub fn name(self) -> Option<&'static str> {
                $(if self == Self::$variant { return Some(stringify!($variant)); })*
                None
            }
        }

        impl core::fmt::Debug for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                match self.name() {
                    Some(name) => f.write_str(name),
                    None => write!(f, concat!(stringify!($name), "({:#x})"), self.0),
                }
            }
        }
    };
}
