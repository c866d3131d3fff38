# Three instances in three zones, with a fixed private address and local SSDs each.
#
# A stop erases a local SSD. Nothing here stops an instance that runs: neither a newer image nor other metadata, and
# each is protected from deletion, but for one slot at a time. Replace one at a time, after `cairn health --safe-to-stop`.

locals {
  name = "cairn-${var.cluster}"
  members = join(",", [for slot, member in var.members :
    "${slot}=${member.private_ip}:7400/${member.private_ip}:7401"
  ])
}

resource "google_compute_address" "member" {
  for_each     = var.members
  project      = var.project
  region       = var.region
  name         = "${local.name}-${each.key}"
  address_type = "INTERNAL"
  subnetwork   = var.subnetwork
  address      = each.value.private_ip
}

resource "google_compute_firewall" "between_members" {
  project     = var.project
  network     = var.network
  name        = "${local.name}-members"
  description = "Members ask one another at both ports"
  source_tags = [local.name]
  target_tags = [local.name]
  allow {
    protocol = "tcp"
    ports    = ["7400", "7401"]
  }
}

resource "google_compute_firewall" "clients" {
  count         = length(var.client_cidrs) > 0 ? 1 : 0
  project       = var.project
  network       = var.network
  name          = "${local.name}-clients"
  description   = "Clients"
  source_ranges = var.client_cidrs
  target_tags   = [local.name]
  allow {
    protocol = "tcp"
    ports    = ["7400"]
  }
}

resource "google_service_account" "member" {
  for_each     = var.members
  project      = var.project
  account_id   = trimsuffix(substr("cairn-${each.key}-${var.cluster}", 0, 28), "-")
  display_name = "Cairn ${var.cluster}, slot ${each.key}"
}

# A member reads its own certificate and the package, and no other member's certificate. A condition needs a bucket with
# uniform access.
resource "google_storage_bucket_iam_member" "member" {
  for_each = var.members
  bucket   = var.bucket
  role     = "roles/storage.objectViewer"
  member   = "serviceAccount:${google_service_account.member[each.key].email}"
  condition {
    title      = "own-files"
    expression = "resource.name.startsWith(\"projects/_/buckets/${var.bucket}/objects/slot-${each.key}/\") || resource.name == \"projects/_/buckets/${var.bucket}/objects/${var.package.key}\""
  }
}

resource "google_compute_instance" "member" {
  for_each            = var.members
  project             = var.project
  zone                = each.value.zone
  name                = "${local.name}-${each.key}"
  machine_type        = var.machine_type
  tags                = [local.name]
  labels              = var.labels
  deletion_protection = tostring(var.stoppable_slot) != each.key

  boot_disk {
    initialize_params {
      image = var.image
      size  = 20
      # c3 and c3d take no pd-standard.
      type = "pd-balanced"
    }
  }

  dynamic "scratch_disk" {
    for_each = range(var.local_ssds)
    content {
      interface = "NVME"
    }
  }

  network_interface {
    subnetwork = var.subnetwork
    network_ip = google_compute_address.member[each.key].address
    nic_type   = "GVNIC"
  }

  # What the account may do is said by its roles alone. A narrower scope would refuse what a role allows, such as backups
  # to a bucket, and it changes only on a stopped instance, whose drives are erased.
  service_account {
    email  = google_service_account.member[each.key].email
    scopes = ["https://www.googleapis.com/auth/cloud-platform"]
  }

  shielded_instance_config {
    enable_secure_boot          = true
    enable_vtpm                 = true
    enable_integrity_monitoring = true
  }

  # The guest environment runs this at each boot: a stop leaves the drives blank.
  metadata = {
    enable-oslogin         = "TRUE"
    block-project-ssh-keys = "TRUE"
    startup-script = templatefile("${path.module}/../boot.tftpl", {
      machine        = file("${path.module}/machine.sh")
      cluster        = var.cluster
      slot           = each.key
      members        = local.members
      failure_domain = each.value.zone
      bucket         = var.bucket
      package        = var.package
      size           = var.size
      settings       = var.settings
    })
  }

  lifecycle {
    # A machine type with its own local SSDs puts them into the state as scratch disks, and a difference there replaces
    # the instance.
    ignore_changes = [boot_disk[0].initialize_params[0].image, metadata, scratch_disk]
  }

  depends_on = [google_storage_bucket_iam_member.member]
}
