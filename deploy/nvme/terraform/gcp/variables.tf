variable "project" {
  description = "Project of the instances."
  type        = string
}

variable "region" {
  description = "Region of the subnet and its zones."
  type        = string
}

variable "network" {
  description = "Network of the subnet, for the firewall."
  type        = string
}

variable "subnetwork" {
  description = "Subnet of all members: on GCP one reaches over all zones of its region."
  type        = string
}

variable "cluster" {
  description = "Name of the cluster, as in its certificates."
  type        = string
  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{0,39}$", var.cluster))
    error_message = "Small letters, digits and -, at most 40, since instances are named after it."
  }
}

variable "members" {
  description = "The members by slot: a zone, each another one, and a free private address of the subnet. An address stays with its slot, also when the instance is replaced."
  type = map(object({
    zone       = string
    private_ip = string
  }))
  validation {
    condition     = length(var.members) >= 3 && length(var.members) % 2 == 1
    error_message = "Three members, or five: an even one more may fail no more."
  }
  validation {
    condition     = alltrue([for slot in keys(var.members) : can(regex("^[1-9][0-9]{0,3}$", slot))])
    error_message = "The keys are slots: \"1\", \"2\", \"3\"."
  }
  validation {
    condition     = alltrue([for member in values(var.members) : can(cidrhost("${member.private_ip}/32", 0))])
    error_message = "private_ip is an IPv4 address such as 10.0.1.10."
  }
  validation {
    condition     = length(distinct([for member in values(var.members) : member.zone])) == length(var.members)
    error_message = "Two members are in one zone: they fail together."
  }
}

variable "machine_type" {
  description = "A machine with local SSDs: z3 and c3d with -lssd have their own, n2 takes those of local_ssds."
  type        = string
  default     = "c3d-standard-8-lssd"
  validation {
    condition     = can(regex("^(z3-.*|c3d-.*-lssd|c3-.*-lssd|n2-.*|n2d-.*)$", var.machine_type))
    error_message = "A type with local NVMe drives, such as c3d-standard-8-lssd, z3-highmem-14-standardlssd or n2-standard-8."
  }
}

variable "local_ssds" {
  description = "Local SSDs of 375 GB each, for types that do not bring their own (n2, n2d). One is used. A change is for instances that are made afterwards."
  type        = number
  default     = 0
}

variable "image" {
  description = "An image of Debian or Ubuntu with the gcloud command line, kernel 5.15 or newer, and gVNIC and NVMe."
  type        = string
  default     = "debian-cloud/debian-12"
}

variable "bucket" {
  description = "Bucket with the package, and below slot-N/ the files ca.pem, member-N.pem and member-N-key.pem. The machines read it by their service accounts; nothing of it is in the state."
  type        = string
}

variable "package" {
  description = "The .deb in the bucket, and its checksum from SHA256SUMS of the release."
  type = object({
    key    = string
    sha256 = string
  })
  validation {
    condition     = can(regex("^[A-Za-z0-9._/-]+\\.deb$", var.package.key)) && can(regex("^[0-9a-f]{64}$", var.package.sha256))
    error_message = "key is the path of an .deb in the bucket, sha256 has 64 hexadecimal digits."
  }
}

variable "client_cidrs" {
  description = "Networks from which clients connect to port 7400."
  type        = list(string)
  default     = []
  validation {
    condition     = alltrue([for cidr in var.client_cidrs : can(cidrhost(cidr, 0)) && cidr != "0.0.0.0/0"])
    error_message = "Networks such as 10.0.0.0/16, and not all of the world."
  }
}

variable "size" {
  description = "Size of the data directory, such as 800GiB; empty: nine tenths of the drive."
  type        = string
  default     = ""
  validation {
    condition     = can(regex("^([0-9]+(MiB|GiB|TiB))?$", var.size))
    error_message = "A size such as 800GiB."
  }
}

variable "settings" {
  description = "Other keys of the configuration, such as { \"backup.target\" = \"gs://example/cairn\" }, for which each member's service account needs a role on that bucket. They are in the state and in the instances' metadata: no secrets."
  type        = map(string)
  default     = {}
  validation {
    condition     = alltrue([for key, value in var.settings : can(regex("^[a-z][a-zA-Z0-9_.-]*$", key)) && !can(regex("['\\n]", value))])
    error_message = "Keys as in `cairn config print`, values without quotes and line ends."
  }
}

variable "stoppable_slot" {
  description = "The one slot whose instance may be deleted or replaced now; 0: none. That erases its drives, so one at a time, after `cairn health --safe-to-stop`."
  type        = number
  default     = 0
}

variable "labels" {
  description = "Labels of everything that is made."
  type        = map(string)
  default     = {}
}
