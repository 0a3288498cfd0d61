variable "project_id" {
  description = "The Google Cloud project, by its id. It exists already and pays."
  type        = string

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{4,28}[a-z0-9]$", var.project_id))
    error_message = "project_id ${var.project_id} is no project id: 6 to 30 small letters, digits and hyphens."
  }
}

variable "name" {
  description = "The name of the cluster, the network and the image repository, and the start of every other name."
  type        = string
  default     = "headrace"

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{1,18}[a-z0-9]$", var.name))
    error_message = "name ${var.name} must be 3 to 20 small letters, digits and hyphens: service accounts have 30."
  }
}

variable "labels" {
  description = "Labels of everything that has a bill, to find it there."
  type        = map(string)
  default     = { app = "headrace" }
}

variable "region" {
  description = "Where the cluster, the bucket and the images are: one region, so that nothing is paid for on the way."
  type        = string
  default     = "us-central1"
}

variable "zone" {
  description = "The zone of the nodes, and of TPU pools that name none. The pipelines' database is bound to it."
  type        = string
  default     = "us-central1-a"

  validation {
    condition     = startswith(var.zone, "${var.region}-")
    error_message = "zone ${var.zone} does not lie in region ${var.region}."
  }
}

variable "release_channel" {
  description = "Which Kubernetes versions GKE chooses: RAPID, REGULAR or STABLE."
  type        = string
  default     = "REGULAR"

  validation {
    condition     = contains(["RAPID", "REGULAR", "STABLE"], var.release_channel)
    error_message = "release_channel must be RAPID, REGULAR or STABLE, not ${var.release_channel}."
  }
}

variable "maintenance" {
  description = "When GKE may replace nodes, which stops running steps for a while. Times in UTC, rule as in RFC 5545."
  type        = object({ start_time = string, end_time = string, recurrence = string })
  default = {
    start_time = "2026-01-03T02:00:00Z"
    end_time   = "2026-01-03T14:00:00Z"
    recurrence = "FREQ=WEEKLY;BYDAY=SA,SU"
  }
}

variable "authorized_networks" {
  description = "Name to CIDR block of networks that may reach the control plane by address. None: by its DNS name only."
  type        = map(string)
  default     = {}

  validation {
    condition = alltrue([
      for block in values(var.authorized_networks) : can(cidrhost(block, 0)) && !endswith(block, "/0")
    ])
    error_message = "authorized_networks must hold CIDR blocks, and not the whole internet."
  }
}

variable "cpu_pool" {
  description = "Nodes of the pipelines themselves and of steps without an accelerator. One at least has to run the cluster."
  type = object({
    machine_type = optional(string, "e2-standard-8")
    min_nodes    = optional(number, 1)
    max_nodes    = optional(number, 4)
    disk_gb      = optional(number, 100)
  })
  default = {}

  validation {
    condition     = 1 <= var.cpu_pool.min_nodes && var.cpu_pool.min_nodes <= var.cpu_pool.max_nodes
    error_message = "cpu_pool needs 1 <= min_nodes <= max_nodes."
  }
}

variable "spot_pool" {
  description = "Cheap nodes that may be taken away, for pods that tolerate cloud.google.com/gke-spot."
  type = object({
    machine_type = optional(string, "e2-standard-8")
    max_nodes    = optional(number, 4)
    disk_gb      = optional(number, 100)
  })
  default = {}

  validation {
    condition     = var.spot_pool.max_nodes >= 1
    error_message = "spot_pool.max_nodes must be 1 or more; an empty pool costs nothing."
  }
}

variable "sandbox_pool" {
  description = "Nodes under gVisor for code that a model wrote. From none to max_nodes."
  type = object({
    machine_type = optional(string, "e2-standard-4")
    max_nodes    = optional(number, 2)
    disk_gb      = optional(number, 50)
  })
  default = {}

  validation {
    condition     = var.sandbox_pool.max_nodes >= 1
    error_message = "sandbox_pool.max_nodes must be 1 or more; an empty pool costs nothing."
  }

  validation {
    condition     = !can(regex("^e2-(micro|small|medium)$", var.sandbox_pool.machine_type))
    error_message = "sandbox_pool.machine_type ${var.sandbox_pool.machine_type} is too small for gVisor."
  }
}

variable "tpu_pools" {
  description = <<-EOT
    TPU slices that may exist at once, by name. A pool is empty, and free, until a step asks for it. `slices`: how many
    of this shape; `capacity`: on_demand, spot, or reservation (then `reservation` names it); `zone`: where this type
    is offered, if not in the variable `zone`. After a change apply the output `queue`, too.
  EOT
  type = map(object({
    type        = string
    topology    = string
    slices      = optional(number, 1)
    capacity    = optional(string, "on_demand")
    reservation = optional(string, "")
    zone        = optional(string)
    disk_gb     = optional(number, 200)
  }))
  default = {
    "v5e-8"       = { type = "v5e", topology = "2x4" }
    "v5e-8-spot"  = { type = "v5e", topology = "2x4", capacity = "spot" }
    "v5e-16-spot" = { type = "v5e", topology = "4x4", capacity = "spot" }
    "v6e-16-spot" = { type = "v6e", topology = "4x4", capacity = "spot", zone = "us-central1-b" }
  }

  validation {
    condition = alltrue([
      for pool in values(var.tpu_pools) : contains(keys(local.tpu_shapes), "${pool.type} ${pool.topology}")
    ])
    error_message = "There is no such TPU slice: ${join(", ", [
      for name, pool in var.tpu_pools : "${name} (${pool.type} ${pool.topology})"
      if !contains(keys(local.tpu_shapes), "${pool.type} ${pool.topology}")
    ])}. There are ${join(", ", keys(local.tpu_shapes))}."
  }

  validation {
    condition = alltrue([
      for pool in values(var.tpu_pools) : contains(["on_demand", "spot", "reservation"], pool.capacity)
    ])
    error_message = "The capacity of a TPU pool is on_demand, spot or reservation."
  }

  validation {
    condition = alltrue([
      for pool in values(var.tpu_pools) : (pool.capacity == "reservation") == (pool.reservation != "")
    ])
    error_message = "A TPU pool names a reservation if its capacity is reservation, and only then."
  }

  validation {
    condition     = alltrue([for pool in values(var.tpu_pools) : pool.slices >= 1 && floor(pool.slices) == pool.slices])
    error_message = "A TPU pool has 1 slice or more; leave it out to have none."
  }

  validation {
    condition = alltrue([
      for pool in values(var.tpu_pools) : startswith(coalesce(pool.zone, var.zone), "${var.region}-")
    ])
    error_message = "The zone of a TPU pool lies in region ${var.region}, as the cluster does."
  }

  validation {
    condition = alltrue([
      for name in keys(var.tpu_pools) :
      can(regex("^[a-z][a-z0-9-]{0,30}[a-z0-9]$", name)) && !contains(["cpu", "spot", "sandbox"], name)
    ])
    error_message = "The name of a TPU pool is small letters, digits and hyphens, 2 to 32, and not that of another pool."
  }
}

variable "replaced_days" {
  description = "For how many days the bucket keeps what was overwritten or deleted."
  type        = number
  default     = 7

  validation {
    condition     = var.replaced_days >= 1
    error_message = "replaced_days must be 1 or more: an accident should be seen before it is final."
  }
}

variable "deletion_protection" {
  description = "While true, no teardown removes the cluster."
  type        = bool
  default     = true
}

variable "destroy_data" {
  description = "While false, a teardown stops at a bucket that is not empty. True: runs, checkpoints and adapters go with it."
  type        = bool
  default     = false
}
