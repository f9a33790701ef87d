{{- define "octavo.name" -}}
{{- if contains "octavo" .Release.Name }}{{ .Release.Name }}{{ else }}{{ .Release.Name }}-octavo{{ end -}}
{{- end }}
{{- define "octavo.selector" -}}
app.kubernetes.io/name: octavo
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- define "octavo.labels" -}}
{{ include "octavo.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}
