{{/* Prefix of all names. */}}
{{- define "horologe.name" -}}
{{- .Values.nameOverride | default .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end }}

{{/* Labels that select the pods of a component: list of root and component. */}}
{{- define "horologe.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: horologe
app.kubernetes.io/instance: {{ $root.Release.Name }}
{{- with index . 1 }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- end }}

{{/* Labels of an object: list of root and component. */}}
{{- define "horologe.labels" -}}
{{- $root := index . 0 -}}
{{ include "horologe.selector" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ $root.Chart.Name }}-{{ $root.Chart.Version }}
{{- end }}

{{/* An image: list of root and name. A name with a tag or a digest stays as it is. */}}
{{- define "horologe.image" -}}
{{- $root := index . 0 -}}
{{- $name := index . 1 -}}
{{- if $root.Values.image.registry }}{{ $root.Values.image.registry }}/{{ end -}}
{{- $name -}}
{{- if not (regexMatch "[:@][^/]*$" $name) }}:{{ $root.Values.image.tag | default $root.Chart.AppVersion }}{{ end -}}
{{- end }}

{{/* Whether the number of workers of a pool is changed by others than Helm: list of root and pool. */}}
{{- define "horologe.scaled" -}}
{{- $root := index . 0 -}}
{{- $pool := index . 1 -}}
{{- if or (ne $pool.autoscaling.kind "none") (eq $root.Values.tuner.scaler "kubernetes") }}true{{ end -}}
{{- end }}

{{/* Pools of workers by name, each with the defaults of the pool `cpu` for the fields that it does not set. */}}
{{- define "horologe.pools" -}}
{{- $pools := dict -}}
{{- range $name, $pool := .Values.workers -}}
{{- if $pool -}}
{{- $defaults := dict "replicas" 1 "hardware" $name "device" "cpu" "gpus" 0 "gpuResource" "nvidia.com/gpu" "surge" true "minReadySeconds" 10 -}}
{{- $autoscaling := mergeOverwrite (dict "kind" "none" "min" 1 "max" 4 "busy" 0.6) ($pool.autoscaling | default dict) -}}
{{- $hardware := $pool.hardware | default $name -}}
{{- $_ := set $pools $name (mergeOverwrite $defaults $pool (dict "autoscaling" $autoscaling "hardware" $hardware)) -}}
{{- end -}}
{{- end -}}
{{ toYaml $pools }}
{{- end }}
