//! Programs of other projects: found, or built by Go from their published sources.

use crate::progress::Step;
use anyhow::{Context, Result};
use cairn_launch::{command, run};
use std::path::{Path, PathBuf};

/// A program that Go can build.
pub struct GoProgram {
    /// Its name.
    pub name: &'static str,
    /// Its module.
    pub module: &'static str,
    /// The version that is built if none is installed.
    pub version: &'static str,
    /// For a module that `go install` does not take, since it replaces modules: the package whose `Main`
    /// is the program.
    pub main: Option<&'static str>,
}

impl GoProgram {
    /// The program of the search path; else the one that was built before; else builds it.
    ///
    /// # Errors
    /// If there is none and Go cannot build it, with what to install.
    pub fn get(&self) -> Result<PathBuf> {
        let GoProgram { name, version, .. } = self;
        if run(&mut command(name, ["--version"])).is_ok() {
            return Ok(PathBuf::from(name));
        }
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/peers");
        std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        let folder = folder.canonicalize()?.join(format!("{name}-{version}"));
        let built = folder.join(name);
        if run(&mut command(&built, ["--version"])).is_err() {
            let _step = Step::new(format!("building {name} {version}"));
            self.build(&folder).with_context(|| {
                format!(
                    "{name} is not on the search path, and Go 1.26 does not build it: install one of the two \
                     to be compared with it"
                )
            })?;
        }
        Ok(built)
    }

    fn build(&self, folder: &Path) -> Result<()> {
        let GoProgram { name, module, version, main } = self;
        std::fs::create_dir_all(folder)?;
        let go = |arguments: &[&str]| {
            run(command("go", arguments).current_dir(folder).env("GOBIN", folder))
        };
        let Some(package) = main else {
            go(&["install", &format!("{module}@{version}")])?;
            return Ok(());
        };
        let source = format!(
            "package main\n\nimport (\n\t\"os\"\n\n\tprogram \"{package}\"\n)\n\n\
             func main() {{ program.Main(os.Args) }}\n"
        );
        std::fs::write(folder.join("main.go"), source)?;
        let requirement = format!("module {name}\n\nrequire {module} {version}\n");
        std::fs::write(folder.join("go.mod"), requirement)?;
        go(&["mod", "tidy"])?;
        go(&["build", "-o", name])?;
        Ok(())
    }
}
