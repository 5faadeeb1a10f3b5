package doctor

import (
	"slices"
	"strings"

	"github.com/kubejoin/kubejoin/internal/safetext"
	"k8s.io/apimachinery/pkg/util/version"
)

// removedGates maps a minor version to the feature gates that the next minor version removes. The source is the
// difference between the tables of pkg/features in Kubernetes 1.35.4, 1.36.3 and 1.37.2, and in apiserver,
// apiextensions-apiserver, client-go, component-base and controller-manager of the same releases. For 1.37, the source
// is the comments in 1.37.2 that say that 1.38 removes a gate.
var removedGates = map[uint][]string{
	35: {
		"CSIMigrationPortworx", "HonorPVReclaimPolicy", "InPlacePodVerticalScalingAllocatedStatus", "InTreePluginPortworxUnregister",
		"MemoryManager", "ServiceTrafficDistribution", "StructuredAuthorizationConfiguration", "TopologyAwareHints",
		"WatchFromStorageWithoutResourceVersion",
	},
	36: {
		"APIServerTracing", "AnonymousAuthConfigurableEndpoints", "AnyVolumeDataSource", "AuthorizeNodeWithSelectors",
		"AuthorizeWithSelectors", "BtreeWatchCache", "ConsistentListFromCache", "GangScheduling", "JobBackoffLimitPerIndex",
		"JobPodReplacementPolicy", "JobSuccessPolicy", "LogarithmicScaleDown", "OrderedNamespaceDeletion",
		"PodLifecycleSleepAction", "PodLifecycleSleepActionAllowZero", "PreventStaticPodAPIReferences",
		"RelaxedDNSSearchValidation", "ResilientWatchCacheInitialization", "RetryGenerateName", "SchedulerQueueingHints",
		"SidecarContainers", "StreamingCollectionEncodingToJSON", "StreamingCollectionEncodingToProtobuf",
		"StructuredAuthenticationConfiguration", "WorkloadAwarePreemption",
	},
	37: {
		"AllowOverwriteTerminationGracePeriodSeconds", "DisableCPUQuotaWithExclusiveCPUs", "DynamicResourceAllocation",
		"ExecProbeTimeout", "ImageMaximumGCAge", "InPlacePodVerticalScaling", "JobManagedBy", "MutableCSINodeAllocatableCount",
		"PodObservedGenerationTracking", "SupplementalGroupsPolicy",
	},
}

// checkFeatureGates finds feature gates that prevent a component from starting after the next upgrade.
func checkFeatureGates(f *Facts) []Finding {
	v, err := version.ParseGeneric(f.KubernetesVersion)
	if err != nil || v.Major() != 1 {
		return nil // checkKubernetesVersion reports this version
	}
	var all []Finding
	for _, name := range []string{kubeAPIServer, kubeControllerManager, kubeScheduler} {
		all = append(all, f.onEach(name, func(machine string, flags flags) []Finding {
			var removed, kept []string
			for _, setting := range flags.list("feature-gates") {
				gate, _, _ := strings.Cut(setting, "=")
				gate = strings.TrimSpace(gate[strings.LastIndex(gate, ":")+1:]) // COMPONENT:GATE=VALUE
				if slices.Contains(removedGates[v.Minor()], gate) {
					removed = append(removed, gate)
				} else {
					kept = append(kept, setting)
				}
			}
			if len(removed) == 0 {
				return nil
			}
			return []Finding{found("feature-gate-removed", setFlag(name, "feature-gates", strings.Join(kept, ","), ""),
				"%s on %s sets --feature-gates=%s, which Kubernetes 1.%d lacks, so it will not start after an upgrade", name, machine, safetext.Few(removed), v.Minor()+1)}
		})...)
	}
	return all
}
