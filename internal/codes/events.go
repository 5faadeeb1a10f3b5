package codes

const normal, warning = "Normal", "Warning" // the types of Events, as in k8s.io/api/core/v1

// An Event is the reason and the type of an Event. Only this package creates Events, so its table lists all recorded Events.
type Event struct{ reason, kind string }

// Events maps reasons to the Events that are not about a refusal.
var Events = map[string]Event{}

func event(reason, kind string) Event {
	Events[reason] = Event{reason, kind}
	return Events[reason]
}

// The name of each variable is the reason.
var (
	AnotherKey             = event("AnotherKey", warning)
	ApprovalFailed         = event("ApprovalFailed", warning)
	CAExpired              = event("CAExpired", warning)
	CAExpiresSoon          = event("CAExpiresSoon", warning)
	CAFilesUnusable        = event("CAFilesUnusable", warning)
	CANotTrusted           = event("CANotTrusted", warning)
	CAReplaced             = event("CAReplaced", normal)
	CARotation             = event("CARotation", normal)
	CARotationEdited       = event("CARotationEdited", warning)
	CAShortensCertificates = event("CAShortensCertificates", warning)
	CertificateRenewed     = event("CertificateRenewed", normal)
	ClaimsUnavailable      = event("ClaimsUnavailable", warning)
	ClusterInfoEdited      = event("ClusterInfoEdited", warning)
	ClusterInfoFillsUp     = event("ClusterInfoFillsUp", warning)
	ClusterInfoFull        = event("ClusterInfoFull", warning)
	KeyBound               = event("KeyBound", normal)
	NodeRevoked            = event("NodeRevoked", warning)
	Rejoined               = event("Rejoined", normal)
	RenewalsWait           = event("RenewalsWait", warning)
	SharedNodeName         = event("SharedNodeName", warning)
	SignedByOther          = event("SignedByOther", warning)
	SignerConfigReplaced   = event("SignerConfigReplaced", normal)
	SignerConfigUnusable   = event("SignerConfigUnusable", warning)
	SigningFailed          = event("SigningFailed", warning)
	TokenLimitsReplaced    = event("TokenLimitsReplaced", normal)
	TokenLimitsUnusable    = event("TokenLimitsUnusable", warning)
)

// Refused returns the Event of a request that was denied, has failed, or is no longer retried.
func Refused(reason string) Event { return Event{reason, warning} }

// Undecided returns the Event of a request that kubejoin or somebody else may still grant.
func Undecided(reason string) Event { return Event{reason, normal} }

// Reason returns the reason, one word in CamelCase that never changes.
func (e Event) Reason() string { return e.reason }

// Type returns Normal or Warning.
func (e Event) Type() string { return e.kind }
