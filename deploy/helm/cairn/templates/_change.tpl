{{/* A job that changes the members, one slot after another. `of`: the root, the slots, the verb. It may be repeated. */}}
{{- define "cairn.change" -}}
{{- $root := index . 0 }}
  backoffLimit: 6
  activeDeadlineSeconds: 7200
  template:
    metadata:
      labels: {{- include "cairn.jobLabels" $root | nindent 8 }}
    spec:
      restartPolicy: OnFailure
      {{- include "cairn.jobPod" $root | nindent 6 }}
      initContainers:
        {{- range $slot := index . 1 }}
        - name: slot-{{ $slot }}
          {{- if eq (index $ 2) "add" }}
          args: ["members", "add", "{{ $slot }}", "--timeout", "30m"]
          {{- else }}
          args: ["members", "remove", "{{ $slot }}", "--yes", "--if-member", "--timeout", "30m"]
          {{- end }}
          {{- include "cairn.jobContainer" $root | nindent 10 }}
        {{- end }}
      containers:
        - name: list
          args: ["members", "list"]
          {{- include "cairn.jobContainer" $root | nindent 10 }}
{{- end -}}

{{/* Other labels than those of the members: no service, budget or spread counts a job. */}}
{{- define "cairn.jobLabels" -}}
app.kubernetes.io/name: cairn-members
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* What every job's pod has beside its containers. */}}
{{- define "cairn.jobPod" -}}
enableServiceLinks: false
automountServiceAccountToken: false
securityContext: {{- include "cairn.podSecurity" . | nindent 2 }}
{{- with .Values.image.pullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- if .Values.certificates.enabled }}
volumes:
  - name: client
    secret:
      secretName: {{ include "cairn.name" . }}-client
      defaultMode: 0440
{{- end }}
{{- end -}}

{{/* What every container of a job has beside its name and arguments. */}}
{{- define "cairn.jobContainer" -}}
image: {{ include "cairn.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
env:
  - name: CAIRN_ENDPOINTS
    value: {{ include "cairn.name" . }}:7400
  {{- include "cairn.clientEnvironment" . | nindent 2 }}
resources:
  requests: { cpu: 100m, memory: 64Mi }
  limits: { memory: 256Mi }
securityContext: {{- include "cairn.containerSecurity" . | nindent 2 }}
{{- if .Values.certificates.enabled }}
volumeMounts:
  - { name: client, mountPath: /client, readOnly: true }
{{- end }}
{{- end -}}
