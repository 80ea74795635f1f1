{{- define "ub-node.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "ub-node.selector" -}}
app.kubernetes.io/name: {{ .top.Chart.Name }}
app.kubernetes.io/instance: {{ .top.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "ub-node.labels" -}}
{{ include "ub-node.selector" . }}
app.kubernetes.io/version: {{ .top.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .top.Release.Service }}
helm.sh/chart: {{ .top.Chart.Name }}-{{ .top.Chart.Version }}
{{- end }}

{{- define "ub-node.image" -}}
image: "{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}"
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- end }}

{{/* What the pods of all DaemonSets have in common. */}}
{{- define "ub-node.pod" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{ toYaml . | nindent 2 }}
{{- end }}
priorityClassName: {{ .Values.priorityClassName }}
tolerations: {{ toYaml .Values.tolerations | nindent 2 }}
{{- end }}

{{/* Which nodes a component is for; its own choice narrows the one for all. */}}
{{- define "ub-node.where" -}}
nodeSelector: {{ merge (dict "kubernetes.io/os" "linux") .own .top.Values.nodeSelector | toYaml | nindent 2 }}
{{- end }}

{{/* One registration per node at a time: the old pod is gone before the new one comes, and few nodes change at once. */}}
{{- define "ub-node.update" -}}
updateStrategy:
  type: RollingUpdate
  rollingUpdate:
    maxSurge: 0
    maxUnavailable: 10%
{{- end }}

{{/* A container that may write files of root on the node, and nothing else. */}}
{{- define "ub-node.confined" -}}
securityContext:
  runAsUser: 0
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
  {{- with .Values.seLinuxOptions }}
  seLinuxOptions: {{ toYaml . | nindent 4 }}
  {{- end }}
  seccompProfile:
    type: RuntimeDefault
{{- end }}

{{/* csi.yaml of the driver on a node. */}}
{{- define "ub-node.csi-config" -}}
{{- $config := .Values.csi.config }}
{{- if .Values.csi.peerKeySecret }}
{{- $config = merge (dict "peer_key_file" "/etc/ub-node-peers/key") $config }}
{{- end }}
{{- if .Values.csi.metricsPort }}
{{- $config = merge (dict "metrics_address" (printf "0.0.0.0:%d" (int .Values.csi.metricsPort))) $config }}
{{- end }}
{{- toYaml $config }}
{{- end }}

{{/* Asked of the livenessprobe sidecar, which asks Probe. */}}
{{- define "ub-node.csi-probe" -}}
httpGet: {host: 127.0.0.1, path: /healthz, port: {{ . }}}
periodSeconds: 10
timeoutSeconds: 5
{{- end }}

{{/* A sidecar that talks to the driver and perhaps to the API server. */}}
{{- define "ub-node.sidecar" -}}
{{- include "ub-node.confined" . }}
resources: {{ toYaml .Values.csi.sidecars.resources | nindent 2 }}
volumeMounts:
  - {name: plugin, mountPath: /csi}
{{- end }}
