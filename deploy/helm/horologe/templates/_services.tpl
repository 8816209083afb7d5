{{/* Endpoints of all replicas of a service: list of root and component. */}}
{{- define "horologe.endpoints" -}}
{{- $root := index . 0 -}}
{{- $component := index . 1 -}}
{{- $name := include "horologe.name" $root -}}
{{- $endpoints := list -}}
{{- range $number := until (int (index $root.Values $component).replicas) -}}
{{- $pod := printf "%s-%s-%d.%s-%s" $name $component $number $name $component -}}
{{- $endpoints = append $endpoints (printf "tcp://%s:8010" $pod) -}}
{{- end -}}
{{ join "," $endpoints }}
{{- end }}

{{/* The edge services by component: settings, volumes and mounts as JSON. */}}
{{- define "horologe.services" -}}
{{- $controller := printf "tcp://%s-controller:8010" (include "horologe.name" .) -}}
{{- $selectors := include "horologe.endpoints" (list . "selector") -}}
{{- $frontends := include "horologe.endpoints" (list . "frontend") -}}
{{- $here := "tcp://$(POD_IP):8010" -}}
{{- $bind := "tcp://0.0.0.0:8010" -}}
{{- $services := dict "controller" (dict "settings" (dict "links" (dict "bind" $bind) "controller" (dict "state" (ternary "/state" "" (not (empty .Values.controller.storage)))))) -}}

{{- $store := dict "name" "$(POD_NAME)" "store" "redis" -}}
{{- if .Values.redis.enabled -}}
{{- $_ := set $store "redis" (printf "redis://%s-redis:6379/0" (include "horologe.name" .)) -}}
{{- else if .Values.redis.url -}}
{{- $_ := set $store "redis" .Values.redis.url -}}
{{- end -}}
{{- with .Values.selector.pipelines }}{{ $_ := set $store "pipelines" (printf "/models/%s" .) }}{{ end -}}
{{- $links := dict "bind" $bind "advertise" $here "connect" $controller -}}
{{- $_ := set $services "selector" (dict "settings" (dict "links" $links "selector" $store)) -}}

{{- $links = dict "bind" $bind "advertise" $here "connect" (printf "%s,%s" $selectors $controller) -}}
{{- $http := dict "host" "0.0.0.0" "keys_file" "/keys/http/keys.toml" -}}
{{- if .Values.frontend.ingress.enabled }}{{ $_ := set $http "client_share" "1.0" }}{{ end -}}
{{- $tls := dict -}}
{{- if .Values.frontend.tls.secret -}}
{{- $tls = dict "certificate_file" "/tls/tls.crt" "private_key_file" "/tls/tls.key" -}}
{{- if .Values.frontend.tls.clientCa }}{{ $_ := set $tls "client_ca_file" "/tls/ca.crt" }}{{ end -}}
{{- end -}}
{{- $frontend := dict "name" "$(POD_NAME)" "clients" "tcp://0.0.0.0:8003" -}}
{{- $_ := set $services "frontend" (dict "settings" (dict "links" $links "frontend" $frontend "http" $http "grpc" (dict "host" "0.0.0.0") "tls" $tls)) -}}

{{- if .Values.profiler.enabled -}}
{{- $connect := printf "%s,%s,%s" $frontends $selectors $controller -}}
{{- $links = dict "bind" $bind "advertise" $here "connect" $connect -}}
{{- $_ := set $services "profiler" (dict "settings" (dict "links" $links "profiler" (dict "state" "/state"))) -}}
{{- end -}}

{{- if .Values.tuner.enabled -}}
{{- $links = dict "bind" $bind "advertise" $here "connect" (printf "%s,%s" $frontends $controller) -}}
{{- $tuner := dict "state" "/state" "scaler" .Values.tuner.scaler -}}
{{- if eq .Values.tuner.scaler "kubernetes" -}}
{{- $names := list -}}
{{- $name := include "horologe.name" . -}}
{{- range $pool, $values := include "horologe.pools" . | fromYaml -}}
{{- $names = append $names (printf "%s=%s-gpu-worker-%s" $values.hardware $name $pool) -}}
{{- end -}}
{{- $_ := set $tuner "scaler_target" .Release.Namespace -}}
{{- $_ := set $tuner "scaler_names" (join "," $names) -}}
{{- end -}}
{{- $_ := set $services "tuner" (dict "settings" (dict "links" $links "tuner" $tuner)) -}}
{{- end -}}
{{ toJson $services }}
{{- end }}
