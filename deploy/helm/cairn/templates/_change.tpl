{{/* A job that changes the members, one slot after another. `of`: the root, the name, the slots, the verb, more words. */}}
{{- define "cairn.change" -}}
{{- $root := index . 0 }}
{{- $name := include "cairn.name" $root }}
  backoffLimit: 6
  activeDeadlineSeconds: 7200
  template:
    metadata:
      labels:
        app.kubernetes.io/name: cairn-members
        app.kubernetes.io/instance: {{ $root.Release.Name }}
    spec:
      restartPolicy: OnFailure
      enableServiceLinks: false
      automountServiceAccountToken: false
      securityContext: {{- include "cairn.podSecurity" $root | nindent 8 }}
      initContainers:
        {{- range $slot := index . 1 }}
        - name: slot-{{ $slot }}
          image: {{ include "cairn.image" $root }}
          imagePullPolicy: {{ $root.Values.image.pullPolicy }}
          {{- if eq (index $ 2) "add" }}
          args: ["members", "add", "{{ $slot }}", "--timeout", "30m"]
          {{- else }}
          args: ["members", "remove", "{{ $slot }}", "--yes", "--timeout", "30m"]
          {{- end }}
          env: {{- include "cairn.changeEnvironment" $root | nindent 12 }}
          securityContext: {{- include "cairn.containerSecurity" $root | nindent 12 }}
          {{- include "cairn.changeMounts" $root | nindent 10 }}
        {{- end }}
      containers:
        - name: list
          image: {{ include "cairn.image" $root }}
          imagePullPolicy: {{ $root.Values.image.pullPolicy }}
          args: ["members", "list"]
          env: {{- include "cairn.changeEnvironment" $root | nindent 12 }}
          securityContext: {{- include "cairn.containerSecurity" $root | nindent 12 }}
          {{- include "cairn.changeMounts" $root | nindent 10 }}
      {{- if $root.Values.certificates.enabled }}
      volumes:
        - name: client
          secret:
            secretName: {{ $name }}-client
            defaultMode: 0440
      {{- end }}
{{- end -}}

{{- define "cairn.changeEnvironment" -}}
- name: CAIRN_ENDPOINTS
  value: {{ include "cairn.name" . }}:7400
{{- include "cairn.clientEnvironment" . }}
{{- end -}}

{{- define "cairn.changeMounts" -}}
{{- if .Values.certificates.enabled -}}
volumeMounts:
  - { name: client, mountPath: /client, readOnly: true }
{{- end -}}
{{- end -}}
