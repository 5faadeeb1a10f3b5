{{- define "kubejoin.selector" -}}
app.kubernetes.io/name: kubejoin
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "kubejoin.labels" -}}
{{ include "kubejoin.selector" . }}
app.kubernetes.io/version: {{ .Values.image.tag | default .Chart.AppVersion | replace "+" "_" | trunc 63 | trimAll "-_." | quote }}
app.kubernetes.io/component: join-service
app.kubernetes.io/part-of: kubejoin
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "kubejoin.image" -}}
{{- with .Values.image -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end }}
{{- end }}

{{- /* The folder of the CA in the container. */ -}}
{{- define "kubejoin.caFolder" -}}
{{ if eq .Values.ca.source "hostPath" }}{{ .Values.ca.hostPath }}{{ else }}/etc/kubejoin/ca{{ end }}
{{- end }}

{{- /* The name of the CA's certificate in that folder. */ -}}
{{- define "kubejoin.caCert" -}}
{{ .Values.ca.certFile | default (ternary "ca.crt" "tls.crt" (eq .Values.ca.source "hostPath")) }}
{{- end }}

{{- /* The path where the CA is mounted: the folder, or only the certificate. */ -}}
{{- define "kubejoin.caMount" -}}
{{ include "kubejoin.caFolder" . }}
{{- if and (eq .Values.ca.source "hostPath") (index .Values.flags "cluster-signing-key-url") }}/{{ include "kubejoin.caCert" . }}{{ end }}
{{- end }}

{{- define "kubejoin.args" -}}
- serve
- --listen=:{{ .Values.port }}
{{- if not (hasKey .Values.flags "shutdown-delay-duration") }}
- --shutdown-delay-duration=5s
{{- end }}
{{- with .Values.advertise }}
- {{ printf "--advertise=%s" . | quote }}
{{- end }}
{{- with .Values.ca }}
{{- if ne .source "none" }}
- {{ printf "--cluster-signing-cert-file=%s/%s" (include "kubejoin.caFolder" $) (include "kubejoin.caCert" $) | quote }}
{{- if not (index $.Values.flags "cluster-signing-key-url") }}
- {{ printf "--cluster-signing-key-file=%s/%s" (include "kubejoin.caFolder" $) (.keyFile | default (ternary "ca.key" "tls.key" (eq .source "hostPath"))) | quote }}
{{- end }}
{{- end }}
{{- end }}
{{- if .Values.signerConfig }}
- --signer-config=/etc/kubejoin/config/signers.yaml
{{- end }}
{{- if .Values.tokenLimits }}
- --token-limits=/etc/kubejoin/config/token-limits.yaml
{{- end }}
{{- $names := get .Values.flags "tls-san" | default list }}
{{- if .Values.service.enabled }}
{{- $names = prepend $names (printf "kubejoin.%s.svc" .Release.Namespace) }}
{{- end }}
{{- with $names }}
- {{ printf "--tls-san=%s" (join "," .) | quote }}
{{- end }}
{{- range $name, $value := omit .Values.flags "tls-san" }}
{{- if kindIs "slice" $value }}
- {{ printf "--%s=%s" $name (join "," $value) | quote }}
{{- else if kindIs "string" $value }}
- {{ printf "--%s=%s" $name $value | quote }}
{{- else }}
- {{ printf "--%s=%s" $name (toJson $value) | quote }}
{{- end }}
{{- end }}
{{- range .Values.extraArgs }}
- {{ . | quote }}
{{- end }}
{{- end }}

{{- define "kubejoin.pod" -}}
metadata:
  labels:
    {{- include "kubejoin.labels" . | nindent 4 }}
    {{- with .Values.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with .Values.podAnnotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  serviceAccountName: kubejoin
  enableServiceLinks: false
  # kubejoin runs before there is a pod network or cluster DNS.
  hostNetwork: true
  dnsPolicy: Default
  {{- with .Values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  terminationGracePeriodSeconds: {{ .Values.terminationGracePeriodSeconds }}
  {{- with .Values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.imagePullSecrets }}
  imagePullSecrets:
    {{- range . }}
    - name: {{ . }}
    {{- end }}
  {{- end }}
  securityContext:
    seccompProfile: {type: RuntimeDefault}
    {{- if eq .Values.ca.source "hostPath" }}
    # ca.key belongs to root and has mode 0600.
    runAsUser: 0
    runAsGroup: 0
    {{- else }}
    runAsNonRoot: true
    runAsUser: 65532
    runAsGroup: 65532
    fsGroup: 65532
    {{- end }}
  containers:
  - name: kubejoin
    image: {{ include "kubejoin.image" . | quote }}
    imagePullPolicy: {{ .Values.image.pullPolicy }}
    args:
      {{- include "kubejoin.args" . | nindent 6 }}
    env:
    - name: KUBERNETES_SERVICE_HOST
      {{- if .Values.apiServer.host }}
      value: {{ .Values.apiServer.host | quote }}
      {{- else }}
      # the API server of this host
      valueFrom: {fieldRef: {fieldPath: status.hostIP}}
      {{- end }}
    - name: KUBERNETES_SERVICE_PORT
      value: {{ .Values.apiServer.port | quote }}
    ports:
    - name: https
      containerPort: {{ .Values.port }}
      hostPort: {{ .Values.port }}
      protocol: TCP
    startupProbe:
      httpGet: {path: /healthz, port: https, scheme: HTTPS}
      periodSeconds: 2
      failureThreshold: 60
    livenessProbe:
      httpGet: {path: /healthz, port: https, scheme: HTTPS}
      periodSeconds: 10
      timeoutSeconds: 5
      failureThreshold: 6
    readinessProbe:
      httpGet: {path: /readyz, port: https, scheme: HTTPS}
      periodSeconds: 5
      timeoutSeconds: 5
    securityContext:
      allowPrivilegeEscalation: false
      readOnlyRootFilesystem: true
      capabilities: {drop: [ALL]}
    {{- with .Values.resources }}
    resources:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    {{- if or (ne .Values.ca.source "none") .Values.signerConfig .Values.tokenLimits .Values.mounts }}
    volumeMounts:
    {{- if ne .Values.ca.source "none" }}
    {{- if and (eq .Values.ca.source "hostPath") (index .Values.flags "cluster-signing-key-url") }}
    # only the certificate: the key stays with the signer process
    {{- else }}
    # a folder, because kubejoin re-reads files that are replaced in it
    {{- end }}
    - name: ca
      mountPath: {{ include "kubejoin.caMount" . | quote }}
      readOnly: true
    {{- end }}
    {{- if or .Values.signerConfig .Values.tokenLimits }}
    - name: config
      mountPath: /etc/kubejoin/config
      readOnly: true
    {{- end }}
    {{- range $i, $mount := .Values.mounts }}
    - name: mount-{{ $i }}
      mountPath: {{ $mount.path | quote }}
      readOnly: {{ not $mount.writable }}
    {{- end }}
  volumes:
  {{- if eq .Values.ca.source "hostPath" }}
  - name: ca
    {{- if index .Values.flags "cluster-signing-key-url" }}
    hostPath: {path: {{ include "kubejoin.caMount" . | quote }}, type: File}
    {{- else }}
    hostPath: {path: {{ .Values.ca.hostPath | quote }}, type: Directory}
    {{- end }}
  {{- else if eq .Values.ca.source "secret" }}
  - name: ca
    {{- if index .Values.flags "cluster-signing-key-url" }}
    secret:
      secretName: {{ .Values.ca.secret | quote }}
      defaultMode: 0440
      items: [{key: {{ include "kubejoin.caCert" . | quote }}, path: {{ include "kubejoin.caCert" . | quote }}}]
    {{- else }}
    secret: {secretName: {{ .Values.ca.secret | quote }}, defaultMode: 0440}
    {{- end }}
  {{- end }}
  {{- if or .Values.signerConfig .Values.tokenLimits }}
  - name: config
    configMap: {name: kubejoin}
  {{- end }}
  {{- range $i, $mount := .Values.mounts }}
  - name: mount-{{ $i }}
    {{- if $mount.secret }}
    secret: {secretName: {{ $mount.secret | quote }}, defaultMode: 0440}
    {{- else if $mount.configMap }}
    configMap: {name: {{ $mount.configMap | quote }}}
    {{- else if $mount.hostPath }}
    hostPath: {path: {{ $mount.hostPath | quote }}}
    {{- else }}
    persistentVolumeClaim: {claimName: {{ $mount.persistentVolumeClaim | quote }}}
    {{- end }}
  {{- end }}
    {{- end }}
{{- end }}
