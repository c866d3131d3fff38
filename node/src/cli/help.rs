//! What holds for all commands, said once: under `cairn --help`.

use super::exit;

const COMMON: &str = "\
Finding the cluster, for each command that talks to one: --endpoints, else
CAIRN_ENDPOINTS, else what `cairn dev` wrote to .cairn/endpoints here or in a
folder above, else 127.0.0.1:7400. CAIRN_TIMEOUT sets --timeout. A variable
that is empty counts as unset.

-o json: a command that succeeds prints one JSON document, on one line, to
standard output. One that fails prints {\"error\": TEXT, \"exit_code\": NUMBER}
to standard error. A key or value that is UTF-8 is the member `key` or
`value`; any other is `key_base64` or `value_base64`. `cairn export` without
a file prints lines instead: one document for each key. `cairn watch` prints
one for each change.";

/// Shown under `cairn --help`.
pub(crate) fn after() -> String {
    format!("{COMMON}\n\n{}", exit::TABLE)
}
