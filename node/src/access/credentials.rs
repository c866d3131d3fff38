//! What a request proves: the certificate of its connection, or a token. No other file looks for
//! either.
//!
//! What holds here: a token takes precedence over the certificate. An `authorization` that is not a
//! token proves nothing, whatever certificate comes with it.

use super::token::TokenHash;
use cairn_tls::{Holder, Remote};
use std::sync::Arc;
use tonic::Extensions;
use tonic::metadata::MetadataMap;

/// The longest `authorization` that is read.
const AUTHORIZATION_BYTES: usize = 1024;

/// The name in a verified certificate of this cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CertificateName {
    /// The member of this slot.
    Member(u16),
    /// A client.
    Client(Arc<str>),
}

/// What a request proves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Credentials {
    /// Nothing.
    None,
    /// Nothing: its `authorization` is not a token.
    Malformed,
    /// The name in the certificate of its connection.
    Certificate(CertificateName),
    /// A token, which may be unknown.
    Token(TokenHash),
}

impl Credentials {
    pub(crate) fn of(extensions: &Extensions, metadata: &MetadataMap) -> Credentials {
        let authorization = metadata.get("authorization").map(|value| value.as_encoded_bytes());
        Credentials::presented(extensions, authorization)
    }

    /// The same for a request whose `authorization` is this.
    pub(crate) fn presented(extensions: &Extensions, authorization: Option<&[u8]>) -> Credentials {
        if let Some(authorization) = authorization {
            return bearer(authorization).map_or(Credentials::Malformed, Credentials::Token);
        }
        let certificate = extensions.get::<Remote>().and_then(|remote| remote.certificate.as_ref());
        certificate.map_or(Credentials::None, |name| {
            Credentials::Certificate(match &name.holder {
                Holder::Member(slot) => CertificateName::Member(*slot),
                Holder::Client(name) => CertificateName::Client(Arc::clone(name)),
            })
        })
    }
}

/// The token in `Bearer TOKEN`. The scheme's case does not matter.
fn bearer(authorization: &[u8]) -> Option<TokenHash> {
    if authorization.len() > AUTHORIZATION_BYTES {
        return None;
    }
    let (scheme, token) = authorization.split_at_checked(7)?;
    let token = token.trim_ascii();
    let is_token = scheme.eq_ignore_ascii_case(b"bearer ") && !token.is_empty();
    is_token.then(|| TokenHash::of(token))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(authorization: Option<&str>, certificate: Option<CertificateName>) -> Credentials {
        let certificate = certificate.map(|name| match name {
            CertificateName::Member(slot) => cairn_tls::CertificateName::member("c", slot),
            CertificateName::Client(name) => cairn_tls::CertificateName::client("c", &name),
        });
        let certificate = certificate.map(|name| name.expect("a name"));
        let (mut extensions, mut metadata) = (Extensions::default(), MetadataMap::new());
        if let Some(text) = authorization {
            metadata.insert("authorization", text.parse().expect("a value"));
        }
        extensions.insert(Remote { certificate, ..Remote::default() });
        Credentials::of(&extensions, &metadata)
    }

    #[test]
    fn a_token_takes_precedence_over_the_certificate_even_if_it_is_none() {
        let ada = CertificateName::Client("ada".into());
        let token = Credentials::Token(TokenHash::of(b"secret"));
        assert_eq!(with(None, None), Credentials::None);
        assert_eq!(with(None, Some(ada.clone())), Credentials::Certificate(ada.clone()));
        for text in ["Bearer secret", "bearer  secret "] {
            assert_eq!(with(Some(text), Some(ada.clone())), token);
        }
        let long = format!("Bearer {}", "x".repeat(AUTHORIZATION_BYTES));
        for text in ["", "Bearer", "Bearer ", "Basic secret", "secret", &long] {
            assert_eq!(with(Some(text), Some(ada.clone())), Credentials::Malformed, "{text}");
        }
    }

    #[test]
    fn any_bytes_are_a_token_or_nothing() {
        cairn_fuzz::target!("bearer" => *b"Bearer cairn_x", "basic" => *b"Basic eA==").for_each(
            |bytes| {
                let most = AUTHORIZATION_BYTES + 4096;
                let found = cairn_fuzz::within(most, || bearer(bytes));
                let token = bytes.get(7..).unwrap_or_default().trim_ascii();
                assert_eq!(
                    found.is_some(),
                    bytes.get(..7).is_some_and(|scheme| scheme.eq_ignore_ascii_case(b"bearer "))
                        && !token.is_empty()
                        && bytes.len() <= AUTHORIZATION_BYTES
                );
                assert!(found.is_none_or(|hash| hash.is(&TokenHash::of(token))));
            },
        );
    }
}
