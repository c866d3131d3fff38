//! The names of backups, and the paths of what they write.
//!
//! What holds here: nothing else at a target is a backup's. A path has the name of one backup, and says what it is.

/// The longest name of a backup.
const NAME_BYTES: usize = 64;

/// Whether this may be the name of a backup.
pub(crate) fn is_name(name: &str) -> bool {
    let usual = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    (1..=NAME_BYTES).contains(&name.len()) && name.bytes().all(usual)
}

/// Where the manifest of a backup is: with it the backup is finished.
pub(crate) fn manifest_path(name: &str) -> String {
    format!("{name}/manifest")
}

/// Whether this may be the path of a manifest.
pub(crate) fn is_manifest(path: &str) -> bool {
    let name = folder_of(path);
    is_name(name) && path == manifest_path(name)
}

/// Where the head of a backup is: its first object.
pub(crate) fn head_path(name: &str) -> String {
    format!("{name}/head")
}

/// Where a prune says that it removed the manifest.
pub(crate) fn removed_path(name: &str) -> String {
    format!("{name}/removed")
}

/// Where an object with values or records is.
pub(crate) fn path_of(name: &str, kind: &str, number: usize) -> String {
    format!("{name}/{kind}-{number:06}")
}

/// The first records: a prune removes them before other objects.
pub(crate) fn first_records(name: &str) -> String {
    path_of(name, "records", 0)
}

/// The name of the backup that wrote an object.
pub(crate) fn folder_of(path: &str) -> &str {
    path.split('/').next().unwrap_or_default()
}

/// Whether a backup of this name, or a prune, writes this path.
pub(crate) fn is_written(path: &str, name: &str) -> bool {
    folder_of(path) == name
        && (is_path(path, "values")
            || is_path(path, "records")
            || [head_path, manifest_path, removed_path].iter().any(|of| path == of(name)))
}

/// Whether this may be the path of an object: a name, a kind and a number, with as many zeros as are written.
pub(crate) fn is_path(path: &str, kind: &str) -> bool {
    let file = path.split_once('/').filter(|(name, _)| is_name(name)).map(|(_, file)| file);
    let number = file.and_then(|file| file.strip_prefix(kind)?.strip_prefix('-'));
    number.is_some_and(|number| {
        let is_short = number.len() == 6 || !number.starts_with('0');
        is_short && (6..10).contains(&number.len()) && number.bytes().all(|b| b.is_ascii_digit())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const KINDS: [&str; 2] = ["values", "records"];

    #[test]
    fn any_bytes_are_a_path_within_the_folder_of_one_backup_or_none() {
        cairn_fuzz::target!(
            "values" => path_of("2026-11-29-1", "values", 7).into_bytes(),
            "records" => first_records("a").into_bytes(),
            "head" => head_path("a").into_bytes(),
            "manifest" => manifest_path("a").into_bytes(),
            "removed" => removed_path("a").into_bytes(),
        )
        .for_each(|bytes| {
            let Ok(path) = std::str::from_utf8(bytes) else { return };
            let name = folder_of(path);
            let is_own = is_name(name) && is_written(path, name);
            assert!(is_own || !is_manifest(path) && !KINDS.iter().any(|kind| is_path(path, kind)));
            if !is_own {
                return;
            }
            // Two names, of which none leads elsewhere, in the only form that is written.
            let file = path.strip_prefix(name).and_then(|rest| rest.strip_prefix('/')).unwrap();
            assert!(is_name(file), "{path}");
            let object = KINDS.into_iter().find_map(|kind| {
                let number = file.strip_prefix(kind)?.strip_prefix('-')?;
                Some(path_of(name, kind, number.parse().unwrap()))
            });
            let others = [head_path(name), manifest_path(name), removed_path(name)];
            assert!(others.into_iter().chain(object).any(|written| written == path), "{path}");
        });
    }
}
