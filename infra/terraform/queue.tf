# The queue of TPU jobs (Kueue): who comes first starts first, whole or not at all, within what the pools can grow to. A
# flavor is a kind of slice, with the taints of its nodes: a job that does not tolerate spot nodes gets none. Quotas are
# the pools' sizes.
locals {
  # What a pod of a job may ask for. Kueue admits no job that asks for more.
  covered = ["google.com/tpu", "cpu", "memory"]

  # Pools of one kind (type, topology, spot or not) are one flavor.
  flavors = {
    for slice in values(local.tpu_slices) :
    "tpu-${slice.type}-${slice.topology}${slice.capacity == "spot" ? "-spot" : ""}" => slice...
  }

  flavor_quotas = {
    for name, slices in local.flavors : name => {
      "google.com/tpu" = sum([for slice in slices : slice.slices * slice.hosts * slice.chips_per_host])
      cpu              = sum([for slice in slices : slice.slices * slice.hosts * slice.cpus])
      memory           = "${sum([for slice in slices : slice.slices * slice.hosts * slice.memory_gb])}Gi"
    }
  }

  queue_objects = concat(
    [
      for name, slices in local.flavors : {
        apiVersion = "kueue.x-k8s.io/v1beta2"
        kind       = "ResourceFlavor"
        metadata   = { name = name }
        spec = {
          nodeLabels = merge(
            {
              "cloud.google.com/gke-tpu-accelerator" = slices[0].accelerator
              "cloud.google.com/gke-tpu-topology"    = slices[0].topology
            },
            slices[0].capacity == "spot" ? { "cloud.google.com/gke-spot" = "true" } : {}
          )
          nodeTaints = [
            for key, value in merge(
              { "google.com/tpu" = "present" },
              slices[0].capacity == "spot" ? { "cloud.google.com/gke-spot" = "true" } : {}
            ) : { key = key, value = value, effect = "NoSchedule" }
          ]
        }
      }
    ],
    [
      {
        apiVersion = "kueue.x-k8s.io/v1beta2"
        kind       = "ClusterQueue"
        metadata   = { name = "headrace" }
        spec = {
          namespaceSelector = { matchLabels = { "kubernetes.io/metadata.name" = "kubeflow" } }
          queueingStrategy  = "BestEffortFIFO"
          resourceGroups = [
            for quotas in [local.flavor_quotas] : {
              coveredResources = local.covered
              flavors = [
                for name, amounts in quotas : {
                  name      = name
                  resources = [for resource in local.covered : { name = resource, nominalQuota = amounts[resource] }]
                }
              ]
            } if length(quotas) > 0
          ]
        }
      }
    ]
  )
}

output "queue" {
  description = "infra/kubernetes/overlays/gke/queue.yaml: the flavors and quotas that fit the pools."
  value       = join("---\n", [for object in local.queue_objects : yamlencode(object)])
}
