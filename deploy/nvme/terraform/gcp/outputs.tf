output "endpoints" {
  description = "For `cairn status --endpoints`."
  value       = join(",", [for member in values(var.members) : "${member.private_ip}:7400"])
}
