variable "cluster" {
  description = "Name of the cluster, as in its certificates."
  type        = string
  validation {
    condition     = can(regex("^[A-Za-z0-9._-]{1,40}$", var.cluster))
    error_message = "Letters, digits and . _ -, at most 40."
  }
}

variable "members" {
  description = "The members by slot: a subnet, each in another zone, and a free private address in it. An address stays with its slot, also when the instance is replaced."
  type = map(object({
    subnet_id  = string
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
}

variable "instance_type" {
  description = "An instance with local NVMe drives. One of its drives is used, so choose a type with one large drive."
  type        = string
  default     = "i8g.xlarge"
  validation {
    condition     = can(regex("^(i4i|i4g|i7i|i7ie|i8g|i8ge|im4gn|is4gen)\\.[a-z0-9-]+$", var.instance_type))
    error_message = "A type with local NVMe drives, such as i8g.xlarge or i4i.xlarge."
  }
}

variable "architecture" {
  description = "That of the instance type and of the package: arm64 (i8g) or x86_64 (i4i)."
  type        = string
  default     = "arm64"
  validation {
    condition     = contains(["arm64", "x86_64"], var.architecture)
    error_message = "arm64 or x86_64."
  }
}

variable "bucket" {
  description = "Bucket with the package, and below slot-N/ the files ca.pem, member-N.pem and member-N-key.pem. The machines read it by their roles; nothing of it is in the state."
  type        = string
}

variable "package" {
  description = "The .rpm in the bucket, and its checksum from SHA256SUMS of the release."
  type = object({
    key    = string
    sha256 = string
  })
  validation {
    condition     = can(regex("^[A-Za-z0-9._/-]+\\.rpm$", var.package.key)) && can(regex("^[0-9a-f]{64}$", var.package.sha256))
    error_message = "key is the path of an .rpm in the bucket, sha256 has 64 hexadecimal digits."
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
  description = "Other keys of the configuration, such as { \"backup.target\" = \"s3://example/cairn\" }, for which each member's role needs a policy. They are in the state and in the instances' user data: no secrets."
  type        = map(string)
  default     = {}
  validation {
    condition     = alltrue([for key, value in var.settings : can(regex("^[a-z][a-zA-Z0-9_.-]*$", key)) && !can(regex("['\\n]", value))])
    error_message = "Keys as in `cairn config print`, values without quotes and line ends."
  }
}

variable "stoppable_slot" {
  description = "The one slot whose instance may be stopped or replaced now; 0: none. A stop erases its drives, so one at a time, after `cairn health --safe-to-stop`."
  type        = number
  default     = 0
}

variable "tags" {
  description = "Tags of everything that is made."
  type        = map(string)
  default     = {}
}
