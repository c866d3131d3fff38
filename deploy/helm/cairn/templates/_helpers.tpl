{{/* The release's full name, of which a pod's name is made: short enough for a label. */}}
{{- define "cairn.name" -}}
{{- if contains "cairn" .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-cairn" .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "cairn.selector" -}}
app.kubernetes.io/name: cairn
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "cairn.labels" -}}
{{ include "cairn.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "cairn.image" -}}
{{ printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) | quote }}
{{- end -}}

{{/* The host of a member. `of` is a list of the root and the slot. */}}
{{- define "cairn.host" -}}
{{- $root := index . 0 -}}
{{- $name := include "cairn.name" $root -}}
{{ printf "%s-%d.%s-members.%s.svc.%s" $name (index . 1) $name $root.Release.Namespace $root.Values.clusterDomain }}
{{- end -}}

{{/* What all members have in common of their configurations. */}}
{{- define "cairn.common" -}}
cluster = {{ .Values.cluster | quote }}
storage.size = {{ .Values.storage.size | quote }}
listen.client = "0.0.0.0:7400"
listen.peer = "0.0.0.0:7401"
listen.http = "0.0.0.0:7402"
{{- if not .Values.certificates.enabled }}
insecure = "true"
{{- end }}
{{- range $key, $value := .Values.settings }}
{{ $key }} = {{ $value | toString | quote }}
{{- end }}
{{- end -}}

{{/* The command line's own certificate, and whom it asks. */}}
{{- define "cairn.clientEnvironment" -}}
{{- if .Values.certificates.enabled }}
- name: CAIRN_CLIENT_TLS_CA
  value: /client/ca.crt
- name: CAIRN_CLIENT_TLS_CERTIFICATE
  value: /client/tls.crt
- name: CAIRN_CLIENT_TLS_KEY
  value: /client/tls.key
{{- end }}
{{- end -}}

{{- define "cairn.podSecurity" -}}
runAsNonRoot: true
runAsUser: 7400
runAsGroup: 7400
fsGroup: 7400
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  {{- if .Values.seccompProfile }}
  type: Localhost
  localhostProfile: {{ .Values.seccompProfile | quote }}
  {{- else }}
  type: RuntimeDefault
  {{- end }}
{{- end -}}

{{- define "cairn.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: ["ALL"]
{{- end -}}
