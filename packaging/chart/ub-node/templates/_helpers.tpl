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
    maxUnavailable: {{ .Values.maxUnavailable }}
{{- end }}

{{/* A container that may write its volumes as root, and nothing else. */}}
{{- define "ub-node.bare" -}}
runAsUser: 0
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{/* The same, where volumes are folders of the node. */}}
{{- define "ub-node.confined" -}}
securityContext:
  {{- include "ub-node.bare" . | nindent 2 }}
  {{- with .Values.seLinuxOptions }}
  seLinuxOptions: {{ toYaml . | nindent 4 }}
  {{- end }}
{{- end }}

{{/* Why a container ended is shown by kubectl describe. The usual path is in /dev, which is the node's in some of ours. */}}
{{- define "ub-node.last-words" -}}
terminationMessagePath: /tmp/termination-log
terminationMessagePolicy: FallbackToLogsOnError
{{- end }}

{{/* Until a daemon has begun; then other probes look after it. As long as systemd would wait. */}}
{{- define "ub-node.startup" -}}
periodSeconds: 5
timeoutSeconds: 5
failureThreshold: 36
{{- end }}

{{/* The account's token, for the containers that ask the API server; the others of the pod have none. */}}
{{- define "ub-node.token" -}}
- name: token
  projected:
    defaultMode: 0400
    sources:
      - serviceAccountToken: {path: token, expirationSeconds: 3607}
      - configMap:
          name: kube-root-ca.crt
          items: [{key: ca.crt, path: ca.crt}]
      - downwardAPI:
          items: [{path: namespace, fieldRef: {fieldPath: metadata.namespace}}]
{{- end }}

{{- define "ub-node.token-mount" -}}
- {name: token, mountPath: /var/run/secrets/kubernetes.io/serviceaccount, readOnly: true}
{{- end }}

{{/* csi.yaml of the driver on a node. */}}
{{- define "ub-node.csi-config" -}}
{{- $config := .Values.csi.config }}
{{- if .Values.csi.peerKeySecret }}
{{- $config = merge (dict "peer_key_file" "/etc/ub-node-peers/key") $config }}
{{- end }}
{{- if .Values.csi.metricsPort }}
{{- $config = merge (dict "metrics_address" (printf ":%d" (int .Values.csi.metricsPort))) $config }}
{{- end }}
{{- toYaml $config }}
{{- end }}

{{/* Asked, at `port`, of the livenessprobe sidecar, which asks Probe. A driver that `carries` volumes of running pods by
     data daemons in its container is not restarted because it is slow: that would end them. */}}
{{- define "ub-node.csi-probes" -}}
{{- $asked := printf "httpGet: {host: 127.0.0.1, path: /healthz, port: %d}" (int .port) -}}
startupProbe:
  {{ $asked }}
  {{- include "ub-node.startup" . | nindent 2 }}
{{- if not .carries }}
livenessProbe:
  {{ $asked }}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
{{- end }}
readinessProbe:
  {{ $asked }}
  periodSeconds: 10
  timeoutSeconds: 5
{{- end }}

{{/* A sidecar: `top`, the container's `image` and `args`, `node` if it meets the driver in a folder of the node, `asks`
     if it asks the API server. */}}
{{- define "ub-node.sidecar" -}}
image: {{ .image }}
args: {{ toYaml .args | nindent 2 }}
{{- if .node }}
{{ include "ub-node.confined" .top }}
{{- else }}
securityContext: {{ include "ub-node.bare" .top | nindent 2 }}
{{- end }}
terminationMessagePolicy: FallbackToLogsOnError
resources: {{ toYaml .top.Values.csi.sidecars.resources | nindent 2 }}
volumeMounts:
  - {name: plugin, mountPath: /csi}
  {{- if .asks }}
  {{- include "ub-node.token-mount" . | nindent 2 }}
  {{- end }}
{{- end }}
