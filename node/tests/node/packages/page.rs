//! The commands of `docs/install.md`, as a reader copies them.
//!
//! What holds here: nothing is changed but what the page says to change: versions, the architecture, and the number of
//! the member.

/// Versions on the page: of what is installed first, and of the next one.
const VERSION: &str = "0.1.0";
const NEXT: &str = "0.2.0";

/// What the page's commands are about on one machine.
pub(super) struct Reader<'a> {
    pub(super) slot: usize,
    pub(super) version: &'a str,
    pub(super) next: &'a str,
    pub(super) arch: &'a str,
}

impl Reader<'_> {
    /// The commands in this block of this section, counted from 0.
    pub(super) fn commands(&self, section: &str, block: usize) -> String {
        let page = super::read("docs/install.md");
        let heading = format!("{section}\n");
        let text = page.split("\n## ").find_map(|part| part.strip_prefix(heading.as_str()));
        let text = text.unwrap_or_else(|| panic!("docs/install.md has no section {section}"));
        let commands = text.split("\n```sh\n").nth(block + 1);
        let commands = commands.and_then(|rest| rest.split("\n```").next());
        let commands = commands.unwrap_or_else(|| panic!("{section} has no block {block}"));
        commands
            .replace(NEXT, self.next)
            .replace(VERSION, self.version)
            .replace("_amd64.deb", &format!("_{}.deb", self.arch))
            .replace("member-1", &format!("member-{}", self.slot))
            .replace("--slot 1", &format!("--slot {}", self.slot))
    }
}

#[test]
fn what_is_run_on_a_machine_is_what_the_page_says_there() {
    let reader = Reader { slot: 2, version: "1.2.3", next: "1.2.4", arch: "arm64" };
    let install = reader.commands("From a .deb", 0);
    assert_eq!(install, "sudo apt-get install ./cairn_1.2.3-1_arm64.deb");
    let after = reader.commands("After either", 0);
    for words in [
        " ca.pem member-2.pem member-2-key.pem /etc/cairn/tls/",
        "cairn config check",
        "cairn format",
        "systemctl enable --now cairn",
    ] {
        assert!(after.contains(words), "{words}: {after}");
    }
    let upgrade = reader.commands("Upgrading", 0);
    for words in [
        "--safe-to-stop --slot 2 ",
        "systemctl stop cairn",
        "./cairn_1.2.4-1_arm64.deb ",
        "systemctl start cairn",
        "cairn upgrade check",
    ] {
        assert!(upgrade.contains(words), "{words}: {upgrade}");
    }
    assert!(reader.commands("Removing", 0).contains("apt-get remove cairn"));
    assert!(reader.commands("Removing", 1).contains("userdel cairn"));
}
