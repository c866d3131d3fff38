# What the boot script does in Google Cloud's own way: on Debian or Ubuntu, with a bucket of Cloud Storage.
downloaded=/root/cairn.deb

copy_from_bucket() { # bucket/key file
    gcloud storage cp --no-user-output-enabled "gs://$1" "$2"
}

is_installed() {
    command -v cairn-nvme-setup >/dev/null && getent passwd cairn >/dev/null
}

# A boot that was cut may leave a package half configured, and apt-get then installs nothing. Where another program has
# the lock, dpkg fails and apt-get waits.
install_package() {
    export DEBIAN_FRONTEND=noninteractive
    dpkg --configure -a || true
    apt-get -o DPkg::Lock::Timeout=600 install --yes --quiet "$downloaded"
}
